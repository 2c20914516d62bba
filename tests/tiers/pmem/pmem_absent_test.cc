// A build without libpmem2, whatever this one has: this program is linked with
// the sources that such a build has.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"
#include "tiers/pmem/pmem_medium.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(PmemAbsentTest, ItSaysWhatTheBuildLacked) {
  TemporaryDirectory directory;
  const absl::Status refused = PmemMedium::Open({.place = directory.path(),
                                                 .budget_bytes = 1 << 20,
                                                 .unsafe_media = true})
                                   .status();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(refused.ToString(),
              AllOf(HasSubstr("libpmem2-dev"), HasSubstr("TERRACE_PMEM"),
                    Not(HasSubstr("\n"))));
  EXPECT_TRUE(directory.empty());
}

TEST(PmemAbsentTest, NoDescriptorIsMappedOrLookedAt) {
  EXPECT_TRUE(absl::IsUnimplemented(
      PersistDomain::Map(0, "x", 4096, PersistDomain::Media::kUnsafe)
          .status()));
  EXPECT_TRUE(absl::IsUnimplemented(PersistDomain::ShapeOf(0, "x").status()));
  EXPECT_TRUE(absl::IsUnimplemented(PersistDomain::BadRanges(0, "x").status()));
  EXPECT_TRUE(
      absl::IsUnimplemented(PersistDomain::UnsafeShutdowns(0, "x").status()));
}

}  // namespace
}  // namespace terrace
