// Mapped tiers that refuse or cannot be read: where write-backs go meanwhile,
// and what is told of it, as of a disk path: stats.h.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int kTrustedTensors = 12;

class MappedTrust : public ContractTest {
 protected:
  // Room for one tensor in memory: all others rest below.
  void Start() {
    queue_.reset();
    TestRuntimeOptions options;
    options.prefetch = false;
    options.paths = 2;
    // So that mapped tiers are the fast ones, and filled.
    options.mapped_bytes = 4 * kPlace;
    options.pace = {.read_bytes_per_second = 2 << 20,
                    .write_bytes_per_second = 2 << 20};
    Make(1, options);
    queue_ = world().OpenQueue(kPage, 1);
    tensors_ = world().RegisterMany(kTrustedTensors, kPage);
    seeds_.assign(kTrustedTensors, 0);
    RewriteAll();
  }
  void TearDown() override { queue_.reset(); }
  // What holds for each mapped tier, in a world of its own.
  void ForEachMedium(const std::function<void(int)>& run) {
    int mediums = 1;
    for (int k = 0; k < mediums && !HasFatalFailure(); ++k) {
      SCOPED_TRACE(absl::StrCat("medium ", k));
      Start();
      mediums = world().mediums();
      run(k);
    }
    EXPECT_GT(mediums, 0);
  }

  FaultMedium& medium(int k) { return world().medium_faults(k); }
  TierStats tier(int k) { return stats().tiers.at(1 + static_cast<size_t>(k)); }
  int64_t Writes(int k) {
    int64_t writes = 0;
    for (const MediumCall& call : medium(k).calls()) {
      if (call.direction == IoDirection::kWrite) ++writes;
    }
    return writes;
  }
  // The slot is given to another tensor when what was in it is written.
  void Rewrite(int tensor) {
    const auto i = static_cast<size_t>(tensor);
    world().Fill(*queue_, tensors_[i], ++seeds_[i]);
  }
  void RewriteAll() {
    for (int i = 0; i < kTrustedTensors; ++i) Rewrite(i);
  }
  bool RewriteUntil(const std::function<bool()>& done) {
    for (int i = 0; i < 20 * kTrustedTensors; ++i) {
      if (done()) return true;
      Rewrite(i % kTrustedTensors);
    }
    return done();
  }
  void ExpectAllHold() {
    for (size_t i = 0; i < kTrustedTensors; ++i) {
      EXPECT_TRUE(world().Holds(*queue_, tensors_[i], seeds_[i])) << i;
    }
  }
  // Of all tiers below memory but mapped tier k.
  void ExpectOthersHealthy(int k) {
    const Stats told = stats();
    for (size_t i = 1; i < told.tiers.size(); ++i) {
      if (i == 1 + static_cast<size_t>(k)) continue;
      EXPECT_EQ(told.tiers[i].state, TierState::kHealthy) << told.tiers[i].name;
      EXPECT_TRUE(told.tiers[i].write_error.ok()) << told.tiers[i].write_error;
    }
  }
  // Whether tensors rest there.
  bool IsUsed(int k) { return tier(k).used_bytes > 0; }
  bool Refuses(int k) { return tier(k).state == TierState::kRefusesWrites; }
  absl::Status WornOut(int k) {
    return absl::UnavailableError(
        absl::StrCat(medium(k).name(), ": it is worn out"));
  }
  void Refuse(int k) { medium(k).FailAll(IoDirection::kWrite, WornOut(k)); }
  // What each read of a tensor says, but OK.
  std::vector<absl::Status> ReadErrors() {
    std::vector<absl::Status> errors;
    for (size_t i = 0; i < kTrustedTensors; ++i) {
      absl::StatusOr<Pin> pin =
          world().Take(*queue_, tensors_[i], Access::kRead);
      if (!pin.ok()) {
        errors.push_back(pin.status());
        continue;
      }
      EXPECT_TRUE(HasPattern(pin->data(), seeds_[i])) << i;
    }
    return errors;
  }

  std::unique_ptr<RequestQueue> queue_;
  std::vector<TensorId> tensors_;
  std::vector<uint8_t> seeds_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, MappedTrust,
                         testing::Values(TestWorld::kFarVirtual,
                                         TestWorld::kPmemVirtual,
                                         TestWorld::kThreeVirtual,
                                         TestWorld::kThree,
                                         TestWorld::kFourVirtual),
                         WorldParamName);

TEST_P(MappedTrust, WhatOneRefusesOthersTake) {
  ForEachMedium([&](int k) {
    ASSERT_TRUE(RewriteUntil([&] { return IsUsed(k); }));
    ASSERT_TRUE(queue_->BeginStep(1).ok());
    Refuse(k);
    ASSERT_TRUE(RewriteUntil([&] { return Refuses(k); }));
    EXPECT_EQ(tier(k).write_error, WornOut(k));
    EXPECT_EQ(stats().first_error, WornOut(k));
    ExpectOthersHealthy(k);
    // It is not asked again, and what is written goes away from it.
    const int64_t writes = Writes(k);
    RewriteAll();
    RewriteAll();
    EXPECT_EQ(Writes(k), writes);
    ASSERT_TRUE(world().WaitUntil([&] { return tier(k).used_bytes == 0; }));
    // Nothing is lost: the step is whole.
    EXPECT_TRUE(queue_->CommitStep({.step = 1}).ok());
    ExpectAllHold();
  });
}

TEST_P(MappedTrust, WhatLiesOnOneThatRefusesIsRead) {
  ForEachMedium([&](int k) {
    // The one that is refused leaves; others stay.
    ASSERT_TRUE(RewriteUntil([&] { return tier(k).used_bytes >= 3 * kPlace; }));
    Refuse(k);
    ASSERT_TRUE(RewriteUntil([&] { return Refuses(k); }));
    ASSERT_TRUE(IsUsed(k));
    const int64_t calls = static_cast<int64_t>(medium(k).calls().size());
    ExpectAllHold();
    EXPECT_GT(static_cast<int64_t>(medium(k).calls().size()), calls);
  });
}

TEST_P(MappedTrust, OneThatRefusesIsTriedAgainByTheNextStep) {
  ForEachMedium([&](int k) {
    ASSERT_TRUE(RewriteUntil([&] { return IsUsed(k); }));
    Refuse(k);
    ASSERT_TRUE(RewriteUntil([&] { return Refuses(k); }));
    // By one write alone, as long as it refuses.
    int64_t failed = medium(k).failed_calls();
    ASSERT_TRUE(queue_->BeginStep(1).ok());
    RewriteAll();
    RewriteAll();
    EXPECT_EQ(medium(k).failed_calls(), failed + 1);
    EXPECT_TRUE(Refuses(k));
    EXPECT_TRUE(queue_->CommitStep({.step = 1}).ok());
    medium(k).Clear();
    ASSERT_TRUE(queue_->BeginStep(2).ok());
    ASSERT_TRUE(RewriteUntil([&] { return !Refuses(k); }));
    EXPECT_EQ(tier(k).state, TierState::kHealthy);
    EXPECT_FALSE(tier(k).write_error.ok());  // it is still told what it was
    EXPECT_TRUE(IsUsed(k));
    EXPECT_TRUE(queue_->CommitStep({.step = 2}).ok());
    ExpectAllHold();
  });
}

TEST_P(MappedTrust, OneThatCannotBeReadIsToldUntilItCan) {
  ForEachMedium([&](int k) {
    ASSERT_TRUE(RewriteUntil([&] { return IsUsed(k); }));
    const absl::Status busy = absl::UnavailableError("its link is down");
    medium(k).FailAll(IoDirection::kRead, busy);
    const std::vector<absl::Status> errors = ReadErrors();
    ASSERT_FALSE(errors.empty());
    for (const absl::Status& error : errors) {
      EXPECT_TRUE(absl::IsUnavailable(error)) << error;
      EXPECT_THAT(Message(error), HasSubstr("its link is down"));
    }
    EXPECT_EQ(tier(k).state, TierState::kUnreadable);
    EXPECT_TRUE(tier(k).write_error.ok());
    ExpectOthersHealthy(k);
    medium(k).Clear();
    ExpectAllHold();
    EXPECT_EQ(tier(k).state, TierState::kHealthy);
  });
}

TEST_P(MappedTrust, WhileOneCannotBeReadWritesGoToOthers) {
  ForEachMedium([&](int k) {
    ASSERT_TRUE(RewriteUntil([&] { return IsUsed(k); }));
    medium(k).FailAll(IoDirection::kRead, absl::UnavailableError("not now"));
    ASSERT_FALSE(ReadErrors().empty());
    ASSERT_EQ(tier(k).state, TierState::kUnreadable);
    const int64_t writes = Writes(k);
    RewriteAll();
    RewriteAll();
    EXPECT_EQ(Writes(k), writes);
    EXPECT_TRUE(ReadErrors().empty());
    EXPECT_TRUE(world().WaitUntil([&] { return !IsUsed(k); }));
  });
}

TEST_P(MappedTrust, WhatOneLostIsDataLossByNameAndForGood) {
  ForEachMedium([&](int k) {
    ASSERT_TRUE(RewriteUntil([&] { return IsUsed(k); }));
    medium(k).FailAll(IoDirection::kRead, absl::DataLossError("a bad cell"));
    const std::vector<absl::Status> errors = ReadErrors();
    ASSERT_FALSE(errors.empty());
    for (const absl::Status& error : errors) {
      EXPECT_TRUE(absl::IsDataLoss(error)) << error;
      EXPECT_THAT(Message(error), testing::AllOf(HasSubstr("'tensor "),
                                                 HasSubstr("a bad cell")));
    }
    EXPECT_EQ(tier(k).state, TierState::kUnreadable);
    medium(k).Clear();
    EXPECT_EQ(ReadErrors(), errors);
  });
}

}  // namespace
}  // namespace terrace
