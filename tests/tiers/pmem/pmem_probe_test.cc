#include "tiers/pmem/pmem_probe.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cstdlib>
#include <filesystem>

#include "gmock/gmock.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/pmem/pmem_support.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using PmemProbeTest = PmemTest;

TEST_F(PmemProbeTest, AnOrdinaryFileSystemIsTold) {
  TemporaryDirectory directory;
  if (!directory.MountTmpfs("size=8m")) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  const std::string given = directory.Write("given", "theirs");
  for (const std::string& place : {directory.path(), given}) {
    size_t seen = 0;
    const auto facts = ProbePmem(
        place, [&](absl::Span<std::byte> bytes) { seen = bytes.size(); });
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_EQ(seen, 4096u);
    EXPECT_EQ(facts->file, place);
    EXPECT_EQ(facts->file_system, "tmpfs");
    EXPECT_EQ(facts->granularity, StoreGranularity::kPage);
    EXPECT_THAT(facts->cause, HasSubstr("MAP_SYNC"));
    EXPECT_EQ(facts->size_bytes, 8 << 20);
    EXPECT_EQ(facts->bad_bytes, 0);
  }
  EXPECT_EQ(directory.Entries(), std::vector<std::string>{"given"});
  EXPECT_EQ(std::filesystem::file_size(given), 6u) << "not touched";
}

TEST_F(PmemProbeTest, APlaceThatAJobHasIsTold) {
  TemporaryDirectory directory;
  const std::string given = directory.Write("given", "");
  const auto medium = OpenUnsafe(given, 1 << 20);
  ASSERT_TRUE(medium.ok()) << medium.status();
  const auto facts = ProbePmem(given);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->granularity, (*medium)->facts().granularity);
  EXPECT_EQ(facts->cause, (*medium)->facts().cause);
}

TEST_F(PmemProbeTest, WhatIsNoPlaceIsRefused) {
  TemporaryDirectory directory;
  const std::string absent = directory.path() + "/absent";
  const absl::Status missing = ProbePmem(absent).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(missing.ToString(), HasSubstr(absent));
  const std::string pipe = directory.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& place : {pipe, std::string("/dev/null")}) {
    const absl::Status refused = ProbePmem(place).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(refused.ToString(),
                AllOf(HasSubstr(place), HasSubstr("DAX device")));
  }
}

// As pmem_medium_test.cc says.
TEST_F(PmemProbeTest, RealPersistentMemoryIsTold) {
  bool named = false;
  for (const char* variable : {"TERRACE_TEST_PMEM", "TERRACE_TEST_DAX"}) {
    const char* const place = std::getenv(variable);
    if (place == nullptr) continue;
    named = true;
    const auto facts = ProbePmem(place);
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_NE(facts->granularity, StoreGranularity::kPage);
    EXPECT_THAT(facts->cause, HasSubstr("persistence domain"));
    EXPECT_GT(facts->size_bytes, 0);
    RecordProperty(variable, facts->cause);
  }
  if (!named) GTEST_SKIP() << "no persistent memory is named";
}

}  // namespace
}  // namespace terrace
