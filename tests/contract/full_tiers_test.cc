// Tiers that hold the state and not a byte more, asked for all of it in turn,
// again and again: nothing has room to move to, and everything is had.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

constexpr int kFullTensors = 12;
constexpr int kRounds = 3;

class FullTiers : public ContractTest {
 protected:
  static bool has_device() {
    return GetParam() == TestWorld::kHbmVirtual ||
           GetParam() == TestWorld::kHbm ||
           GetParam() == TestWorld::kHbmPmemVirtual ||
           GetParam() == TestWorld::kHbmPmem;
  }
  static int MappedTiers() {
    switch (GetParam()) {
      case TestWorld::kThreeVirtual:
      case TestWorld::kThree:
      case TestWorld::kHbmPmemVirtual:
      case TestWorld::kHbmPmem:
        return 1;
      case TestWorld::kFourVirtual:
      case TestWorld::kFour:
        return 2;
      default:
        return 0;
    }
  }
  static int64_t MemoryBytes() {
    int64_t bytes = WindowBytes(kPage, 1);
    if (has_device()) bytes += StagingBytes(kPage, 1);
    return bytes;
  }

  // A window in each working tier, places for kFullTensors below: all of it.
  void SetUp() override {
    ContractTest::SetUp();
    if (IsSkipped()) return;
    TestRuntimeOptions options;
    options.hbm_bytes = WindowBytes(kPage, 1);
    options.mapped_bytes = 3 * kPlace;
    options.path_bytes = (kFullTensors - 3 * MappedTiers()) * kPlace;
    MakeOf(MemoryBytes(), options);
    tensors_ = world().RegisterMany(kFullTensors, kPage);
    queues_.push_back(world().OpenQueue(kPage, 1));
    if (has_device()) {
      queues_.push_back(world().OpenQueue(kPage, 1, "hbm"));
    }
    for (uint8_t i = 0; i < kFullTensors; ++i) {
      world().Fill(*queues_.front(), tensors_[i], i);
    }
  }
  void TearDown() override { queues_.clear(); }

  void ExpectFull() {
    for (const TierStats& tier : stats().tiers) {
      const int64_t all = tier.kind == TierKind::kDisk
                              ? (kFullTensors - 3 * MappedTiers()) * kPlace
                              : tier.budget_bytes;
      EXPECT_EQ(tier.used_bytes, all) << tier.name;
      EXPECT_EQ(tier.peak_bytes, all) << tier.name;
    }
    const absl::Status refused =
        runtime().Register({.name = "more", .size_bytes = 1}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  }
  RequestQueue& QueueOf(int tensor, int round) {
    return *queues_[static_cast<size_t>(tensor + round) % queues_.size()];
  }

  std::vector<TensorId> tensors_;
  std::vector<std::unique_ptr<RequestQueue>> queues_;
};
INSTANTIATE_TEST_SUITE_P(
    Worlds, FullTiers,
    testing::Values(TestWorld::kVirtual, TestWorld::kThreeVirtual,
                    TestWorld::kThree, TestWorld::kFourVirtual,
                    TestWorld::kFour, TestWorld::kHbmVirtual, TestWorld::kHbm,
                    TestWorld::kHbmPmemVirtual, TestWorld::kHbmPmem),
    WorldParamName);

TEST_P(FullTiers, CyclicReadsFindAll) {
  ExpectFull();
  for (int round = 0; round < kRounds; ++round) {
    for (uint8_t i = 0; i < kFullTensors; ++i) {
      EXPECT_TRUE(world().Holds(QueueOf(i, round), tensors_[i], i)) << int{i};
    }
  }
  ExpectFull();
  EXPECT_TRUE(stats().first_error.ok()) << stats().first_error;
}

TEST_P(FullTiers, CyclicUpdatesFindWhatWasWrittenBefore) {
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kFullTensors; ++i) {
      absl::StatusOr<Pin> pin = world().Take(
          QueueOf(i, round), tensors_[static_cast<size_t>(i)], Access::kUpdate);
      ASSERT_TRUE(pin.ok()) << pin.status();
      const auto before = static_cast<uint8_t>(i + round * kFullTensors);
      EXPECT_TRUE(world().Has(*pin, before)) << i;
      world().Write(*pin, static_cast<uint8_t>(before + kFullTensors));
    }
  }
  for (int i = 0; i < kFullTensors; ++i) {
    EXPECT_TRUE(
        world().Holds(QueueOf(i, 0), tensors_[static_cast<size_t>(i)],
                      static_cast<uint8_t>(i + kRounds * kFullTensors)));
  }
  ExpectFull();
  EXPECT_TRUE(stats().first_error.ok()) << stats().first_error;
}

// All that is to come is known, so that it is fetched ahead, and each queue
// asks while the other does.
TEST_P(FullTiers, CyclicStepsPushedAtOnceEnd) {
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& queue : queues_) {
      ASSERT_TRUE(queue->BeginStep(round).ok());
      for (uint8_t i = 0; i < kFullTensors; ++i) {
        const Access access = i % 3 == 0 ? Access::kUpdate : Access::kRead;
        ASSERT_TRUE(queue->Push({{tensors_[i], access}}, i, Soon()).ok());
      }
    }
    // Whichever has something: one may be in the other's way meanwhile.
    size_t taken = 0;
    for (size_t turn = 0; taken < kFullTensors * queues_.size(); ++turn) {
      const Time patience = world().Now() + absl::Milliseconds(1);
      absl::StatusOr<Ready> ready =
          queues_[turn % queues_.size()]->Next(patience);
      if (absl::IsDeadlineExceeded(ready.status())) continue;
      // Nothing of its is left.
      if (absl::IsFailedPrecondition(ready.status())) continue;
      ASSERT_TRUE(ready.ok()) << ready.status();
      ASSERT_TRUE(ready->pins.ok()) << ready->pins.status();
      Pin& pin = ready->pins->front();
      const auto seed = static_cast<uint8_t>(ready->tag);
      EXPECT_TRUE(world().Has(pin, seed)) << ready->tag;
      if (ready->tag % 3 == 0) world().Write(pin, seed);
      ++taken;
    }
    for (const auto& queue : queues_) {
      EXPECT_TRUE(queue->CommitStep({.step = round}).ok());
    }
  }
  ExpectFull();
}

}  // namespace
}  // namespace terrace
