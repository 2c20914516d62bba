// Every call of a medium fails in turn: its move ends with that Status, once,
// and no other is touched.
#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "tests/tiers/mapped/copy_fixture.h"

namespace terrace {
namespace {

constexpr Edge kFaultyUp = {kFirst, kDramTier};
constexpr Edge kFaultyDown = {kDramTier, kFirst};

// Moves apart from each other, of each direction and class, of odd sizes.
struct Sent {
  uint64_t tag;
  Edge edge;
  int64_t offset;
  int64_t size_bytes;
  IoClass io_class;
};
const Sent kSent[] = {
    {1, kFaultyUp, 0, 3 * kMiB, IoClass::kDemand},
    {2, kFaultyDown, 4 * kMiB, 2 * kMiB + 17, IoClass::kWriteBack},
    {3, kFaultyDown, 8 * kMiB, 100, IoClass::kDemand},
    {4, kFaultyUp, 9 * kMiB, kMiB + 1, IoClass::kPrefetch},
    {5, {kDramTier, kSecond}, 12 * kMiB, 2 * kMiB, IoClass::kWriteBack},
};
constexpr int kCalls = 3 + 3 + 1 + 2;  // of the first medium

class CopyFaultsTest : public CopyTransportTest {
 protected:
  void SetUp() override { Make(2); }

  static bool Holds(const Sent& sent, int64_t offset) {
    return offset >= sent.offset && offset < sent.offset + sent.size_bytes;
  }
  // What lies where after a move that is whole.
  static void Expect(const Sent& sent, const std::vector<std::byte>& dram,
                     const std::vector<std::byte>& medium,
                     std::vector<std::byte>* dram_after,
                     std::vector<std::byte>* medium_after) {
    const bool up = sent.edge.to == kDramTier;
    const auto from = (up ? medium : dram).begin() + sent.offset;
    std::copy(from, from + sent.size_bytes,
              (up ? *dram_after : *medium_after).begin() + sent.offset);
  }

  void RunWithFault(int call, const absl::Status& error);
};

void CopyFaultsTest::RunWithFault(int call, const absl::Status& error) {
  FillRandom(absl::MakeSpan(dram_), 1);
  FillRandom(absl::MakeSpan(first_bytes_.bytes()), 2);
  FillRandom(absl::MakeSpan(second_bytes_.bytes()), 3);
  const std::vector<std::byte> dram = dram_;
  const std::vector<std::byte> first = first_bytes_.bytes();
  const std::vector<std::byte> second = second_bytes_.bytes();
  const size_t before = first_.calls().size();
  const size_t second_before = second_.calls().size();
  first_.Fail(call, error);
  for (const Sent& sent : kSent) {
    Begin(sent.tag, sent.edge, sent.offset, sent.size_bytes, sent.io_class);
  }
  const auto ends = Finish();

  const std::vector<MediumCall> calls = first_.calls();
  std::vector<std::byte> dram_after = dram;
  std::vector<std::byte> first_after = first;
  std::vector<std::byte> second_after = second;
  ASSERT_EQ(ends.size(), std::size(kSent));
  for (const Sent& sent : kSent) {
    const bool is_second = sent.edge.to == kSecond;
    auto& medium_after = is_second ? second_after : first_after;
    const bool failed =
        call < kCalls && !is_second &&
        Holds(sent, calls[before + static_cast<size_t>(call)].offset);
    if (!failed) {
      EXPECT_TRUE(ends.at(sent.tag).ok()) << ends.at(sent.tag);
      Expect(sent, dram, is_second ? second : first, &dram_after,
             &medium_after);
      continue;
    }
    const bool lost_below =
        absl::IsDataLoss(error) && sent.edge.to != kDramTier;
    EXPECT_EQ(ends.at(sent.tag),
              lost_below ? absl::UnavailableError(error.message()) : error);
    // Its own target is of neither; it alone.
    auto& target = sent.edge.to == kDramTier ? dram_ : first_bytes_.bytes();
    auto& target_after = sent.edge.to == kDramTier ? dram_after : medium_after;
    std::copy_n(target.begin() + sent.offset, sent.size_bytes,
                target_after.begin() + sent.offset);
    // What was not under way when it failed was not asked for.
    const auto later = std::count_if(
        calls.begin() + static_cast<std::ptrdiff_t>(before) + call + 1,
        calls.end(),
        [&](const MediumCall& each) { return Holds(sent, each.offset); });
    EXPECT_EQ(later, 0);
  }
  EXPECT_TRUE(SameBytes(dram_, dram_after));
  EXPECT_TRUE(SameBytes(first_bytes_.bytes(), first_after));
  EXPECT_TRUE(SameBytes(second_bytes_.bytes(), second_after));
  EXPECT_EQ(second_.calls().size() - second_before, 2u);
  EXPECT_EQ(executor_->waiting(), 0u);
}

TEST_F(CopyFaultsTest, EveryCallFailsInTurn) {
  for (int call = 0; call <= kCalls; ++call) {
    SCOPED_TRACE(call);
    RunWithFault(call, absl::UnavailableError(
                           absl::StrCat("the ", call, ". call of first")));
    if (HasFatalFailure()) return;
  }
}

TEST_F(CopyFaultsTest, LostBytesAreLostOnlyWhereTheyWereRead) {
  for (int call = 0; call < kCalls; ++call) {
    SCOPED_TRACE(call);
    RunWithFault(call, absl::DataLossError("poison: first, offset 0"));
    if (HasFatalFailure()) return;
  }
}

TEST_F(CopyFaultsTest, OfTwoErrorsTheFirstToLandIsTold) {
  // The second piece runs inside the first; both fail.
  first_.Fail(0, absl::InternalError("begun first"));
  first_.OnCall([&](const MediumCall& call) {
    if (call.offset > 0) return;
    first_.Fail(0, absl::InternalError("landed first"));
    executor_->RunOne();
  });
  Begin(1, kFaultyUp, 0, 8 * kMiB);
  EXPECT_EQ(Finish().at(1), absl::InternalError("landed first"));
  EXPECT_EQ(Pieces(first_), "ab");
}

TEST_F(CopyFaultsTest, AMoveThatFailedMayBeTriedAgain) {
  first_.Fail(1, absl::UnavailableError("busy"));
  Begin(1, kFaultyDown, 0, 4 * kMiB);
  EXPECT_TRUE(absl::IsUnavailable(Finish().at(1)));
  FillRandom(absl::MakeSpan(dram_), 5);
  Begin(1, kFaultyDown, 0, 4 * kMiB);
  EXPECT_TRUE(Finish().at(1).ok());
  EXPECT_TRUE(std::equal(dram_.begin(), dram_.begin() + 4 * kMiB,
                         first_bytes_.bytes().begin()));
}

}  // namespace
}  // namespace terrace
