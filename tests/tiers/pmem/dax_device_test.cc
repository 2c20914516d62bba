// A DAX device as far as that goes without one: its space, its margins, its bad
// blocks.
#include "tiers/pmem/dax_device.h"

#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "tiers/disk/given_mark.h"
#include "tiers/pmem/bad_ranges.h"
#include "tiers/pmem/pmem_facts.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;
constexpr char kPath[] = "/dev/dax0.0";

TEST(DaxSpaceTest, AMisalignedLengthIsRoundedDown) {
  const auto space = DaxSpace(
      kPath, {.size_bytes = 7 * kMiB + 4096, .alignment = 2 * kMiB}, 0);
  ASSERT_TRUE(space.ok()) << space.status();
  EXPECT_EQ(space->mapped_bytes, 6 * kMiB);
  EXPECT_EQ(space->usable, (Extent{kMiB, 4 * kMiB}));
}

TEST(DaxSpaceTest, ABudgetTakesItsShare) {
  const PersistDomain::Shape shape = {8 * kMiB, 2 * kMiB};
  const auto some = DaxSpace(kPath, shape, 3 * kMiB);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(some->mapped_bytes, 8 * kMiB);
  EXPECT_EQ(some->usable, (Extent{kMiB, 3 * kMiB}));
  EXPECT_TRUE(DaxSpace(kPath, shape, 6 * kMiB).ok());
  const absl::Status refused = DaxSpace(kPath, shape, 6 * kMiB + 4096).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.ToString(),
              AllOf(HasSubstr(kPath), HasSubstr("a budget of 6295552"),
                    HasSubstr("there are 6291456")));
}

TEST(DaxSpaceTest, OneTooSmallIsRefusedByItsBytes) {
  const absl::Status refused =
      DaxSpace(kPath, {.size_bytes = 3 * kMiB, .alignment = 2 * kMiB}, 0)
          .status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(refused.ToString(),
              AllOf(HasSubstr(kPath), HasSubstr("3145728 bytes"),
                    HasSubstr("units of 2097152"), HasSubstr("4194304")));
}

class DaxMarginsTest : public testing::Test {
 protected:
  absl::Status Check(const std::vector<Extent>& bad = {}) const {
    return CheckDaxMargins(kPath, device_, bad);
  }
  void Mark() { WriteGivenMark(reinterpret_cast<char*>(device_.data())); }

  std::vector<std::byte> device_ = std::vector<std::byte>(4 * kMiB);
};

TEST_F(DaxMarginsTest, ZerosAndAMarkWillDo) {
  device_[kMiB] = device_[3 * kMiB - 1] = std::byte{1};  // of a job
  EXPECT_TRUE(Check().ok());
  Mark();
  EXPECT_TRUE(Check().ok());
}

// That the mark has; a record that is not whole makes it none.
TEST_F(DaxMarginsTest, AMarkMaySayHowOftenPowerWasLost) {
  char* const mark = reinterpret_cast<char*>(device_.data());
  EXPECT_EQ((Mark(), MarkedUnsafeShutdowns(mark)), -1);
  for (const int64_t count : {int64_t{0}, int64_t{7}, int64_t{1} << 59}) {
    WriteGivenMark(mark, count);
    EXPECT_TRUE(IsGivenMark(mark)) << count;
    EXPECT_EQ(MarkedUnsafeShutdowns(mark), count);
    EXPECT_TRUE(Check().ok());
  }
  WriteGivenMark(mark, 12);
  const absl::string_view text(mark, kGivenMarkBytes);
  ASSERT_NE(text.find("12"), absl::string_view::npos);
  char* const digits = mark + text.find("12");
  for (const char wrong : {'x', '-', '\0', ' '}) {
    *digits = wrong;
    EXPECT_FALSE(IsGivenMark(mark)) << wrong;
    EXPECT_EQ(MarkedUnsafeShutdowns(mark), -1) << wrong;
  }
  *digits = '3';
  EXPECT_EQ(MarkedUnsafeShutdowns(mark), 32);
  digits[20] = 1;
  EXPECT_FALSE(IsGivenMark(mark)) << "something behind it";
}

TEST(PmemFactsTest, AChangedCountIsALossOfPower) {
  EXPECT_FALSE(LostPower(-1, -1));
  EXPECT_FALSE(LostPower(-1, 5)) << "no mark has told";
  EXPECT_FALSE(LostPower(5, 5));
  EXPECT_TRUE(LostPower(5, 6));
  EXPECT_TRUE(LostPower(5, 0)) << "of another medium";
  EXPECT_TRUE(LostPower(5, -1)) << "of another medium";
}

TEST_F(DaxMarginsTest, DataOfOthersAreRefusedByTheirOffset) {
  for (const bool marked : {false, true}) {
    if (marked) Mark();
    for (const int64_t offset : {int64_t{100}, int64_t{4095}, int64_t{4096},
                                 kMiB - 1, 3 * kMiB, 4 * kMiB - 1}) {
      std::byte& theirs = device_[static_cast<size_t>(offset)];
      const std::byte before = theirs;
      theirs ^= std::byte{1};
      // A mark with a byte changed is none: it is of others as a whole.
      const int64_t named = marked && offset < kGivenMarkBytes ? 0 : offset;
      const absl::Status refused = Check();
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
      EXPECT_THAT(refused.ToString(),
                  AllOf(HasSubstr(kPath), HasSubstr("daxio --zero"),
                        HasSubstr("at offset " + std::to_string(named) + ".")));
      theirs = before;
    }
  }
}

TEST_F(DaxMarginsTest, ABadBlockInThemIsNamedAndNotRead) {
  const absl::Status refused = Check({{3 * kMiB + 4096, 4096}});
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(IoFaultOf(refused).offset, 3 * kMiB + 4096);
  EXPECT_TRUE(absl::IsUnavailable(Check({{512, 512}})));
  EXPECT_TRUE(Check({{kMiB, 2 * kMiB}}).ok());
}

TEST(BadRangesTest, TheyAreThoseOfTheTierInWholeBlocks) {
  const Extent usable = {10 * 4096, 10 * 4096};
  EXPECT_THAT(BadRangesWithin({}, usable), IsEmpty());
  EXPECT_THAT(BadRangesWithin({{0, 10 * 4096}, {20 * 4096, 512}}, usable),
              IsEmpty());
  // In any order, across both ends, one in another, and side by side.
  EXPECT_THAT(
      BadRangesWithin({{19 * 4096 + 512, 99999}, {9 * 4096, 4097}}, usable),
      ElementsAre(Extent{0, 4096}, Extent{9 * 4096, 4096}));
  EXPECT_THAT(BadRangesWithin({{14 * 4096, 512},
                               {12 * 4096 + 512, 1024},
                               {13 * 4096, 512},
                               {12 * 4096 + 1024, 512}},
                              usable),
              ElementsAre(Extent{2 * 4096, 3 * 4096}));
}

TEST(BadRangesTest, TouchedIsWhatARangeHasAByteOf) {
  const std::vector<Extent> bad = {{4096, 4096}, {16384, 4096}};
  EXPECT_EQ(FirstTouched(bad, {0, 4096}), nullptr);
  EXPECT_EQ(FirstTouched(bad, {8192, 8192}), nullptr);
  EXPECT_EQ(FirstTouched(bad, {5000, 0}), nullptr);
  EXPECT_EQ(FirstTouched(bad, {0, 4097}), bad.data());
  EXPECT_EQ(FirstTouched(bad, {8191, 99999}), bad.data());
  EXPECT_EQ(FirstTouched(bad, {8192, 8193}), bad.data() + 1);
}

}  // namespace
}  // namespace terrace
