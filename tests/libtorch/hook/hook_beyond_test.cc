// Operations whose tensors exceed the budget together.
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class HookBeyondTest : public HookTest {
 protected:
  static constexpr int64_t kBytes = 16 << 10;  // of each tensor

  // Twelve tensors, a budget for four and a bit.
  void MakeTwelve(HookOptions options = {}) {
    Make(4 * (kBytes + 4096), 2 * 4096, options);
    for (int i = 0; i < 12; ++i) {
      values_.push_back(at::randn({64, 64}));
      tensors_.push_back(
          Managed("tensor " + std::to_string(i), values_.back().clone()));
    }
  }
  // All that the budget has room for; fewer where one was refused.
  std::vector<Lease> LeaseFour() {
    std::vector<Lease> leases;
    for (int i = 0; i < 4; ++i) {
      auto lease = hook().MakeLease(tensors_[i], Hook::Access::kRead);
      EXPECT_TRUE(lease.ok()) << lease.status();
      if (lease.ok()) leases.push_back(*std::move(lease));
    }
    return leases;
  }
  bool Same(const std::vector<at::Tensor>& expected) {
    bool same = true;
    for (size_t i = 0; i < expected.size(); ++i) {
      same = same && at::equal(tensors_[i], expected[i]);
    }
    return same;
  }

  std::vector<at::Tensor> values_;
  std::vector<at::Tensor> tensors_;
};

TEST_F(HookBeyondTest, OneThatReadsAllGoesBeyondTheBudgetAndGivesItBack) {
  MakeTwelve();
  EXPECT_EQ(hook().stats().over_budget_operation, "");
  for (int round = 0; round < 3; ++round) {
    const std::vector<at::Tensor> norms = at::_foreach_norm(tensors_);
    for (size_t i = 0; i < norms.size(); ++i) {
      EXPECT_TRUE(at::equal(norms[i], values_[i].norm())) << i;
    }
    EXPECT_TRUE(at::equal(at::cat(tensors_), at::cat(values_)));
  }
  const HookStats stats = hook().stats();
  EXPECT_THAT(stats.over_budget_operation,
              testing::AnyOf("aten::_foreach_norm", "aten::cat"));
  EXPECT_GE(stats.over_budget_bytes, 10 * kBytes - 2 * (kBytes + 4096));
  EXPECT_LE(stats.over_budget_bytes, 12 * (kBytes + 4096));
  EXPECT_LE(stats.window_used_bytes, 4 * (kBytes + 4096));
  EXPECT_EQ(stats.failures, 0);
  EXPECT_TRUE(Same(values_));
}

TEST_F(HookBeyondTest, WhatOneWritesToAllIsKept) {
  MakeTwelve();
  std::vector<at::Tensor> expected;
  for (const at::Tensor& value : values_) expected.push_back(value * 3 * 3);
  at::_foreach_mul_(tensors_, 3);
  at::_foreach_mul_(tensors_, 3);
  hook().EvictAll();
  EXPECT_TRUE(Same(expected));
}

TEST_F(HookBeyondTest, OneTensorSeveralTimesCountsOnce) {
  MakeTwelve();
  const std::vector<at::Tensor> same(40, tensors_[3]);
  EXPECT_TRUE(at::equal(at::cat(same)[64 * 39], values_[3][0]));
  EXPECT_EQ(hook().stats().over_budget_operation, "");
}

TEST_F(HookBeyondTest, WhereMemoryHasNoRoomTheErrorNamesOperationAndBytes) {
  MakeTwelve({.beyond_bytes = 8 * kBytes});
  hook().EvictAll();
  EXPECT_THAT(TextThrown([&] { at::cat(tensors_); }),
              AllOf(HasSubstr("terrace: 'tensor "),
                    HasSubstr("aten::cat takes 240 KiB at a time, the "
                              "budget is 88 KiB, and of memory beside it "
                              "128 KiB are available")));
  EXPECT_EQ(hook().error().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(hook().stats().over_budget_operation, "");
}

TEST_F(HookBeyondTest, ALeaseMeanwhileKeepsWhatItHas) {
  MakeTwelve();
  auto lease = hook().MakeLease(tensors_[11], Hook::Access::kWrite);
  ASSERT_TRUE(lease.ok());
  const std::byte* const data = lease->data().data();
  EXPECT_TRUE(at::equal(at::cat(tensors_), at::cat(values_)));
  EXPECT_EQ(lease->data().data(), data);
  lease->End();
  EXPECT_TRUE(Same(values_));
}

TEST_F(HookBeyondTest, BesideLeasesThatHaveAllOthersGoBeyondTheBudget) {
  MakeTwelve();
  const std::vector<Lease> leases = LeaseFour();
  ASSERT_EQ(leases.size(), 4);
  EXPECT_TRUE(Same(values_));
  EXPECT_EQ(hook().stats().over_budget_operation, "aten::equal");
  // A lease lasts, and does not.
  const auto fifth = hook().MakeLease(tensors_[5], Hook::Access::kRead);
  EXPECT_TRUE(absl::IsResourceExhausted(fifth.status())) << fifth.status();
}

TEST_F(HookBeyondTest, WhatFoundNoRoomBesideLeasesIsThereAfterThem) {
  MakeTwelve({.beyond_bytes = 0});
  std::vector<Lease> leases = LeaseFour();
  ASSERT_EQ(leases.size(), 4);
  for (int i = 6; i < 9; ++i) {
    EXPECT_THAT(TextThrown([&] { tensors_[i].sum(); }),
                HasSubstr("at a time, the budget is 88 KiB"));
  }
  leases.clear();
  EXPECT_TRUE(Same(values_));
  const absl::Status closed = hook().Close(Hook::AtClose::kRestore);
  EXPECT_TRUE(closed.ok()) << closed;
  EXPECT_TRUE(Same(values_));
}

TEST_F(HookBeyondTest, ACloseBringsWhatIsStillToBeFetchedAfterLeases) {
  MakeTwelve({.beyond_bytes = 0});
  std::vector<Lease> leases = LeaseFour();
  ASSERT_EQ(leases.size(), 4);
  EXPECT_NE(TextThrown([&] { tensors_[6].sum(); }), "");
  const absl::Status refused = hook().Close(Hook::AtClose::kRestore);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(TextThrown([&] { tensors_[6].sum(); }),
              HasSubstr("at a time, the budget is 88 KiB"));
  // It is not fetched yet at the end of the last one: its disk fails.
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  leases.clear();
  world().faults().Clear();
  const absl::Status closed = hook().Close(Hook::AtClose::kRestore);
  EXPECT_TRUE(closed.ok()) << closed;
  EXPECT_TRUE(Same(values_));
}

TEST_F(HookBeyondTest, AWindowThatIsResizedHoldsLess) {
  MakeTwelve();
  EXPECT_TRUE(Same(values_));
  EXPECT_GT(hook().stats().window_used_bytes, 2 * (kBytes + 4096));
  ASSERT_TRUE(hook().Resize(2 * (kBytes + 4096), 3 * (kBytes + 4096)).ok());
  ASSERT_TRUE(world().WaitUntil(
      [&] { return hook().stats().window_used_bytes <= 2 * (kBytes + 4096); }));
  EXPECT_TRUE(Same(values_));
  EXPECT_LE(hook().stats().window_used_bytes, 2 * (kBytes + 4096));
  for (const auto& [window, most] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1 << 20}, {4096, 1024}, {4096, 1 << 30}, {1 << 30, 1 << 30}}) {
    EXPECT_EQ(hook().Resize(window, most).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(HookBeyondTest, AHookKnowsWhatItManages) {
  MakeTwelve();
  EXPECT_TRUE(hook().Manages(tensors_[5]));
  EXPECT_TRUE(hook().Manages(tensors_[5].view({-1}).slice(0, 3, 9)));
  EXPECT_FALSE(hook().Manages(values_[5]));
  EXPECT_FALSE(hook().Manages(at::Tensor()));
}

TEST_F(HookBeyondTest, AGradientIsTakenByItselfAndKeepsNoLeafAlive) {
  Make(64 << 10);
  at::Tensor leaf = at::ones({3, 3}).set_requires_grad(true);
  EXPECT_TRUE(hook().ManageGradient({"leaf", leaf}).ok());  // none yet
  EXPECT_EQ(hook().stats().managed_tensors, 0);
  leaf.mul(2).sum().backward();
  EXPECT_TRUE(hook().ManageGradient({"leaf", leaf}).ok());
  EXPECT_TRUE(hook().ManageGradient({"leaf", leaf}).ok());  // once
  EXPECT_EQ(hook().stats().managed_tensors, 1);
  const at::Tensor first = leaf.grad();
  leaf.mutable_grad().reset();
  leaf.mul(3).sum().backward();
  EXPECT_TRUE(hook().ManageGradient({"leaf", leaf}).ok());
  EXPECT_EQ(hook().stats().managed_tensors, 2);
  EXPECT_TRUE(at::equal(first, at::full({3, 3}, 2.f)));
  EXPECT_TRUE(at::equal(leaf.grad(), at::full({3, 3}, 3.f)));
  EXPECT_EQ(leaf.use_count(), 1u);
  leaf.reset();
  EXPECT_EQ(hook().stats().managed_tensors, 1);
}

}  // namespace
}  // namespace terrace
