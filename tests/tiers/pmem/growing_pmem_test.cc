// A tier of persistent memory that grows, and one that another process left:
// against a plain vector, and what the disk has of it.
#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/other_job.h"
#include "tests/tiers/pmem/pmem_support.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kPage = kBlockBytes;
constexpr int64_t kBudget = 8 * kPage;

class GrowingPmemTest : public PmemTest {
 protected:
  PmemOptions Options() const {
    return {.place = directory_.path(),
            .budget_bytes = kBudget,
            .grows = true,
            .unsafe_media = true};
  }
  std::unique_ptr<PmemMedium> Open() const {
    auto medium = PmemMedium::Open(Options());
    EXPECT_TRUE(medium.ok()) << medium.status();
    return *std::move(medium);
  }
  static int64_t Grow(Medium& medium, int64_t least, int64_t bytes) {
    const auto gained = medium.Grow({medium.size_bytes(), least, bytes});
    EXPECT_TRUE(gained.ok()) << gained.status();
    return gained.value_or(-1);
  }
  // That the file takes of the disk.
  static int64_t OnDisk(const Medium& medium) {
    struct stat found = {};
    EXPECT_EQ(stat(medium.name().c_str(), &found), 0);
    return found.st_blocks * 512;
  }
  static std::vector<std::byte> AllOf(Medium& medium) {
    std::vector<std::byte> all(static_cast<size_t>(medium.size_bytes()));
    EXPECT_TRUE(medium.Read(0, absl::MakeSpan(all)).ok());
    return all;
  }
  TemporaryDirectory directory_;
};

TEST_F(GrowingPmemTest, ItTakesOfTheDiskWhatItGrowsBy) {
  const auto medium = Open();
  EXPECT_EQ(medium->size_bytes(), 0);
  EXPECT_EQ(medium->most_bytes(), kBudget);
  EXPECT_EQ(OnDisk(*medium), 0);
  EXPECT_EQ(Grow(*medium, kPage, 2 * kPage), 2 * kPage);
  EXPECT_EQ(medium->size_bytes(), 2 * kPage);
  EXPECT_EQ(OnDisk(*medium), 2 * kPage);
  std::vector<std::byte> plain = Filled(2 * kPage, 1);
  ASSERT_TRUE(medium->Write(0, plain).ok());
  EXPECT_EQ(Grow(*medium, 3 * kPage, 100 * kPage), 6 * kPage);  // all there is
  plain.resize(kBudget);
  EXPECT_EQ(AllOf(*medium), plain);
  const absl::Status much = medium->Grow({kBudget, kPage, kPage}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(much)) << much;
  EXPECT_THAT(std::string(much.message()), HasSubstr(medium->name()));
  EXPECT_EQ(AllOf(*medium), plain);
  EXPECT_TRUE(medium->Remove().ok());
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(GrowingPmemTest, OnlyADirectorysFileGrows) {
  PmemOptions options = Options();
  options.place = directory_.Write("given", "");
  const absl::Status given = PmemMedium::Open(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(given)) << given;
}

TEST_F(GrowingPmemTest, AFullDiskIsToldAndGivesTheLeast) {
  if (!directory_.MountTmpfs("size=64k")) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  directory_.Write("other", std::string(4 * kPage, 'x'));
  PmemOptions options = Options();
  options.budget_bytes = 16 * kPage;  // of which 12 are there
  auto medium = PmemMedium::Open(options);
  ASSERT_TRUE(medium.ok()) << medium.status();
  EXPECT_EQ(Grow(**medium, kPage, 16 * kPage), kPage);
  const std::vector<std::byte> plain = Filled(kPage, 3);
  ASSERT_TRUE((*medium)->Write(0, plain).ok());
  const absl::Status full =
      (*medium)->Grow({kPage, 15 * kPage, 15 * kPage}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(AllOf(**medium), plain);
  EXPECT_EQ(Grow(**medium, kPage, kPage), kPage);
  EXPECT_EQ((*medium)->size_bytes(), 2 * kPage);
}

TEST_F(GrowingPmemTest, WhatAnotherProcessLeftIsAsItWas) {
  const std::vector<std::byte> plain = Filled(3 * kPage, 2);
  OtherJob other([&](OtherJob::HasIt has_it) {
    const auto medium = PmemMedium::Open(Options());
    has_it(medium.ok() && (*medium)->Grow({0, 4 * kPage, 4 * kPage}).ok() &&
           (*medium)->Write(0, plain).ok());
  });
  const std::string folder =
      std::filesystem::directory_iterator(directory_.path())->path();
  // With a descriptor of the lock, as a store hands it out.
  const auto reopen = [&] {
    return PmemMedium::Reopen(
        Options(),
        {.name = std::filesystem::path(folder).filename(),
         .file = OwnDescriptor::Open(folder + "/lock", O_RDWR | O_CLOEXEC),
         .seal_id = 7},
        3 * kPage, SystemClock().Now() + absl::Seconds(20));
  };
  const absl::Status held = reopen().status();
  EXPECT_TRUE(absl::IsInvalidArgument(held)) << held;
  other.Kill();
  auto medium = reopen();
  ASSERT_TRUE(medium.ok()) << medium.status();
  EXPECT_EQ((*medium)->seal_id(), 7u);
  EXPECT_EQ((*medium)->size_bytes(), 3 * kPage);
  EXPECT_EQ(OnDisk(**medium), 3 * kPage);  // what was in no use went
  EXPECT_EQ(AllOf(**medium), plain);
  EXPECT_EQ(Grow(**medium, kPage, kPage), kPage);
  std::vector<std::byte> more = plain;
  more.resize(4 * kPage);
  EXPECT_EQ(AllOf(**medium), more);
  medium->reset();
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

}  // namespace
}  // namespace terrace
