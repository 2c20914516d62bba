// The bytes of a mapped file against a plain vector, and against what the file
// says.
#include "tiers/pmem/pmem_medium.h"

#include <sys/mount.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "base/bytes.h"
#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "tests/support/own_child.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/pmem/pmem_support.h"
#include "tiers/disk/given_mark.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

using Bytes = std::vector<std::byte>;

// Directories and given files, of an ordinary file system and of tmpfs; where
// TERRACE_TEST_PMEM names a directory on a file system with DAX, there as well,
// and not unsafe; likewise TERRACE_TEST_DAX, a device.
class PmemMediumTest : public PmemTest,
                       public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    PmemTest::SetUp();
    if (IsSkipped()) return;
    const std::string kind = GetParam();
    std::string folder = directory_.path();
    if (kind == "DaxFile" || kind == "DaxDevice") {
      safe_ = true;
      const bool file = kind == "DaxFile";
      const char* const place =
          std::getenv(file ? "TERRACE_TEST_PMEM" : "TERRACE_TEST_DAX");
      if (place == nullptr) GTEST_SKIP() << "no persistent memory is named";
      place_ = place;
      return;
    }
    if (kind == "TmpfsDirectory" && !directory_.MountTmpfs("size=32m")) {
      GTEST_SKIP() << "mounting is not allowed here";
    }
    place_ = kind == "GivenFile" ? directory_.Write("given", "") : folder;
  }

  absl::StatusOr<std::unique_ptr<PmemMedium>> TryOpen(int64_t bytes) const {
    return PmemMedium::Open(
        {.place = place_, .budget_bytes = bytes, .unsafe_media = !safe_});
  }

  // What lies in the place, but for what a file system has there by itself.
  std::vector<std::string> OwnNames() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(place_)) {
      names.push_back(entry.path().filename());
    }
    std::erase(names, "lost+found");
    return names;
  }

  std::unique_ptr<PmemMedium> Open(int64_t bytes = 4 * kMiB) const {
    auto medium = TryOpen(bytes);
    EXPECT_TRUE(medium.ok()) << medium.status();
    if (!medium.ok()) return nullptr;
    EXPECT_EQ((*medium)->size_bytes(), bytes);
    EXPECT_EQ((*medium)->facts().granularity == StoreGranularity::kPage,
              !safe_);
    return *std::move(medium);
  }

  TemporaryDirectory directory_;
  std::string place_;
  bool safe_ = false;
};
INSTANTIATE_TEST_SUITE_P(Kinds, PmemMediumTest,
                         testing::Values("Directory", "GivenFile",
                                         "TmpfsDirectory", "DaxFile",
                                         "DaxDevice"),
                         [](const auto& kind) {
                           return std::string(kind.param);
                         });

Bytes ReadAll(PmemMedium& medium) {
  Bytes bytes(static_cast<size_t>(medium.size_bytes()), std::byte{0xee});
  const absl::Status read = medium.Read(0, absl::MakeSpan(bytes));
  EXPECT_TRUE(read.ok()) << read;
  return bytes;
}

// The same of the file, by its own name; the tier lies at its end.
Bytes ReadRaw(const PmemMedium& medium) {
  const auto size =
      static_cast<int64_t>(std::filesystem::file_size(medium.name()));
  return RawBytes(medium.name(), size - medium.size_bytes(),
                  medium.size_bytes());
}

TEST_P(PmemMediumTest, ItsBytesAreThoseOfAPlainVector) {
  const auto medium = Open();
  ASSERT_NE(medium, nullptr);
  Bytes expected = ReadAll(*medium);
  const bool device = medium->facts().file_system == "devdax";
  if (!device) {
    EXPECT_EQ(expected, Bytes(expected.size())) << "a file begins as zeros";
  }
  std::minstd_rand random(20);
  const auto below = [&random](int64_t n) {
    return static_cast<int64_t>(random()) % n;
  };
  for (int i = 0; i < 300; ++i) {
    const int64_t size = below(i % 8 == 0 ? 300'000 : 9'000);
    const int64_t offset = below(medium->size_bytes() - size + 1);
    const auto at = expected.begin() + offset;
    if (i % 3 != 2) {
      const Bytes written = Filled(size, static_cast<uint32_t>(i));
      ASSERT_TRUE(medium->Write(offset, written).ok());
      std::copy(written.begin(), written.end(), at);
      continue;
    }
    Bytes read(static_cast<size_t>(size));
    ASSERT_TRUE(medium->Read(offset, absl::MakeSpan(read)).ok());
    ASSERT_TRUE(std::equal(read.begin(), read.end(), at)) << offset;
  }
  EXPECT_EQ(ReadAll(*medium), expected);
  if (device) return;
  EXPECT_EQ(ReadRaw(*medium), expected);
}

TEST_P(PmemMediumTest, FirstAndLastBytesAndNone) {
  const auto medium = Open(kMiB);
  ASSERT_NE(medium, nullptr);
  Bytes expected = ReadAll(*medium);
  for (const int64_t offset :
       {int64_t{0}, int64_t{63}, int64_t{4095}, kMiB - 65, kMiB - 1}) {
    for (const int64_t size : {0, 1, 2, 63, 65}) {
      if (offset + size > kMiB) continue;
      const Bytes written = Filled(size, static_cast<uint32_t>(offset + 7));
      ASSERT_TRUE(medium->Write(offset, written).ok());
      std::copy(written.begin(), written.end(), expected.begin() + offset);
    }
  }
  EXPECT_TRUE(medium->Write(kMiB, {}).ok());
  EXPECT_TRUE(medium->Read(kMiB, {}).ok());
  EXPECT_EQ(ReadAll(*medium), expected);
}

TEST_P(PmemMediumTest, ARangeBeyondItIsAnErrorOfTheCaller) {
  const auto medium = Open(kMiB);
  ASSERT_NE(medium, nullptr);
  Bytes two(2);
  EXPECT_DEATH(medium->Read(kMiB - 1, absl::MakeSpan(two)).IgnoreError(),
               "internal error");
  EXPECT_DEATH(medium->Write(-1, two).IgnoreError(), "internal error");
}

// Ranges that meet in the middle of pages and cache lines.
TEST_P(PmemMediumTest, ThreadsWriteAndReadDifferentRangesAtOnce) {
  const auto medium = Open();
  ASSERT_NE(medium, nullptr);
  constexpr int kThreads = 4;
  constexpr int64_t kPiece = 12'345;
  const int64_t pieces = medium->size_bytes() / kPiece;
  std::vector<int> wrong(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Bytes read(kPiece);
      for (int64_t i = t; i < pieces; i += kThreads) {
        const Bytes written = Filled(kPiece, static_cast<uint32_t>(i));
        const bool same = medium->Write(i * kPiece, written).ok() &&
                          medium->Read(i * kPiece, absl::MakeSpan(read)).ok() &&
                          read == written;
        wrong[static_cast<size_t>(t)] += same ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(kThreads, 0));
  const Bytes all = ReadAll(*medium);
  for (int64_t i = 0; i < pieces; ++i) {
    const Bytes written = Filled(kPiece, static_cast<uint32_t>(i));
    ASSERT_TRUE(
        std::equal(written.begin(), written.end(), all.begin() + i * kPiece))
        << i;
  }
}

TEST_P(PmemMediumTest, ItGivesItsSpaceBack) {
  for (const bool by_remove : {true, false}) {
    auto medium = Open();
    ASSERT_NE(medium, nullptr);
    ASSERT_TRUE(medium->Write(0, Filled(kMiB, 3)).ok());
    const std::string file = medium->name();
    const std::string system = medium->facts().file_system;
    if (by_remove) {
      EXPECT_TRUE(medium->Remove().ok());
    }
    medium = nullptr;
    if (system == "devdax") continue;
    if (file != place_) {
      EXPECT_EQ(OwnNames(), std::vector<std::string>()) << by_remove;
    } else if (by_remove) {
      EXPECT_EQ(std::filesystem::file_size(file), kGivenMarkBytes);
    }
  }
  EXPECT_NE(Open(), nullptr) << "it is used again";
}

TEST_P(PmemMediumTest, AForkedChildHasNoneOfItAndRemovesNothing) {
  auto medium = Open();
  ASSERT_NE(medium, nullptr);
  const Bytes written = Filled(medium->size_bytes(), 9);
  ASSERT_TRUE(medium->Write(0, written).ok());
  const int code = ExitCodeInChild([&] {
    Bytes bytes(written.size());
    const bool has_none =
        absl::IsCancelled(medium->Read(0, absl::MakeSpan(bytes))) &&
        absl::IsCancelled(medium->Write(0, written));
    const bool ok = medium->Remove().ok();
    medium = nullptr;
    std::_Exit(has_none && ok ? 0 : 1);
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(ReadAll(*medium), written);
  if (medium->name() != place_) return;
  const absl::Status second = TryOpen(kMiB).status();
  EXPECT_TRUE(absl::IsUnavailable(second)) << second << ": the lock is ours";
}

TEST_F(PmemTest, AFileThatWasCutIsDataLossWhereItEnds) {
  TemporaryDirectory directory;
  const auto medium = OpenUnsafe(directory.Write("given", ""), kMiB);
  ASSERT_TRUE(medium.ok()) << medium.status();
  const Bytes written = Filled(kMiB, 5);
  ASSERT_TRUE((*medium)->Write(0, written).ok());
  const std::string file = (*medium)->name();
  ASSERT_EQ(truncate(file.c_str(), kGivenMarkBytes + 8192), 0);
  Bytes read(8192);
  EXPECT_TRUE((*medium)->Read(0, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, Bytes(written.begin(), written.begin() + 8192));
  const absl::Status lost = (*medium)->Read(100, absl::MakeSpan(read));
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_THAT(lost.ToString(),
              AllOf(HasSubstr(file), HasSubstr("offset 12288")));
  EXPECT_EQ(IoFaultOf(lost).path, file);
  EXPECT_EQ(IoFaultOf(lost).offset, 12288);
}

// The mark is of a medium that counts them, and this file is none.
TEST_F(PmemTest, ACountThatChangedSinceTheMarkIsToldAndNothingIsTrusted) {
  TemporaryDirectory directory;
  std::string marked(kGivenMarkBytes, '\0');
  WriteGivenMark(marked.data(), 3);
  const std::string given = directory.Write("given", marked + "of before");
  const auto medium = OpenUnsafe(given, kMiB);
  ASSERT_TRUE(medium.ok()) << medium.status();
  EXPECT_TRUE((*medium)->facts().lost_power);
  EXPECT_EQ(ReadAll(**medium), Bytes(kMiB));
}

TEST_F(PmemTest, WhatWasFoundIsTold) {
  TemporaryDirectory directory;
  if (!directory.MountTmpfs("size=8m")) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  const auto medium = OpenUnsafe(directory.path(), kMiB);
  ASSERT_TRUE(medium.ok()) << medium.status();
  const PmemFacts& facts = (*medium)->facts();
  EXPECT_EQ(facts.file_system, "tmpfs");
  EXPECT_EQ(facts.granularity, StoreGranularity::kPage);
  EXPECT_THAT(facts.cause, AllOf(HasSubstr("MAP_SYNC"), HasSubstr("tmpfs"),
                                 HasSubstr("EOPNOTSUPP")));
  EXPECT_EQ(facts.size_bytes, kMiB);
  EXPECT_EQ(facts.bad_bytes, 0);
  EXPECT_EQ(facts.unsafe_shutdowns, -1);
  EXPECT_FALSE(facts.lost_power);
  EXPECT_THAT(facts.file, HasSubstr(directory.path()));
  EXPECT_TRUE((*medium)->bad_ranges().empty());
}

}  // namespace
}  // namespace terrace
