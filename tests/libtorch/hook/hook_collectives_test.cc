// What a process group goes on with after its operation has returned, by a
// group whose Works end when the test says so.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// It writes what it has only as it ends.
class HeldWork final : public c10d::Work {
 public:
  HeldWork(std::vector<at::Tensor> tensors, bool tells)
      : tensors_(std::move(tensors)) {
    for (const at::Tensor& each : tensors_) {
      addresses_.push_back(each.data_ptr<float>());
    }
    if (tells) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
    }
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_.defined() ? future_ : Work::getFuture();  // which throws
  }
  void End() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      for (int64_t k = 0; k < tensors_[i].numel(); ++k) addresses_[i][k] += 1;
    }
    if (future_.defined()) future_->markCompleted();
    finish();
  }
  void Fail() {
    const auto why = std::make_exception_ptr(std::runtime_error("no peer"));
    if (future_.defined()) future_->setError(why);
    finish(why);
  }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<float*> addresses_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class HeldGroup final : public c10d::Backend {
 public:
  explicit HeldGroup(bool tells) : Backend(0, 1), tells_(tells) {}
  const std::string getBackendName() const override { return "held"; }
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions&) override {
    last_ = c10::make_intrusive<HeldWork>(tensors, tells_);
    return last_;
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int,
                                      int) override {
    last_ = c10::make_intrusive<HeldWork>(std::vector<at::Tensor>(), tells_);
    static_cast<void>(tensors);
    return last_;
  }
  // Of the last operation; this has it no more.
  c10::intrusive_ptr<HeldWork> Take() { return std::move(last_); }

 private:
  const bool tells_;
  c10::intrusive_ptr<HeldWork> last_;
};

class HookCollectivesTest : public HookTest,
                            public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    Make(64 << 10);
    backend_ = c10::make_intrusive<HeldGroup>(GetParam());
    group_ = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
    group_->setBackend(c10::DeviceType::CPU,
                       c10d::ProcessGroup::BackendType::CUSTOM, backend_);
  }
  c10::intrusive_ptr<HeldWork> AllReduce(std::vector<at::Tensor> tensors) {
    group_->allreduce(tensors);
    return backend_->Take();
  }
  c10d::ProcessGroup& group() { return *group_; }
  HeldGroup& backend() { return *backend_; }
  // Uses what is here, so that what has ended is looked for.
  void Miss() {
    static_cast<void>(other_.sum());
    hook().EvictAll();
  }
  void ManageOther() { other_ = Managed("other", at::ones({64})); }

 private:
  c10::intrusive_ptr<HeldGroup> backend_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  at::Tensor other_;
};

INSTANTIATE_TEST_SUITE_P(TellsItsEnd, HookCollectivesTest, testing::Bool());

TEST_P(HookCollectivesTest, ATensorStaysUntilTheWorkIsDone) {
  const at::Tensor t = Cold("t", {100});
  const at::Tensor before = t.clone();
  ManageOther();
  const auto work = AllReduce({t});
  for (int i = 0; i < 3; ++i) {
    Miss();
    EXPECT_FALSE(IsCold(t));
  }
  std::thread([&] { work->End(); }).join();
  Miss();
  Miss();
  EXPECT_TRUE(IsCold(t));
  EvictFromMemory();
  EXPECT_TRUE(t.equal(before + 1));
}

TEST_P(HookCollectivesTest, AWorkThatFailsLetsGo) {
  const at::Tensor t = Cold("t", {100});
  ManageOther();
  const auto work = AllReduce({t});
  Miss();
  EXPECT_FALSE(IsCold(t));
  work->Fail();
  Miss();
  Miss();
  EXPECT_TRUE(IsCold(t));
}

TEST_P(HookCollectivesTest, AWorkThatIsGoneLetsGo) {
  const at::Tensor t = Cold("t", {100});
  ManageOther();
  auto work = AllReduce({t});
  Miss();
  EXPECT_FALSE(IsCold(t));
  work.reset();
  Miss();
  Miss();
  EXPECT_TRUE(IsCold(t));
}

TEST_P(HookCollectivesTest, TwoWorksOfOneTensorEndInAnyOrder) {
  const at::Tensor t = Cold("t", {100});
  const at::Tensor before = t.clone();
  ManageOther();
  const auto first = AllReduce({t, t});
  const auto second = AllReduce({t.view({10, 10})});
  second->End();
  Miss();
  Miss();
  EXPECT_FALSE(IsCold(t));
  first->End();
  Miss();
  Miss();
  EXPECT_TRUE(IsCold(t));
  EXPECT_TRUE(t.equal(before + 1 + 1 + 1));
}

TEST_P(HookCollectivesTest, WhatIsMoreThanTheBudgetGoesBeyondItMeanwhile) {
  std::vector<at::Tensor> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(Cold(std::to_string(i), {3000}));
  }
  std::vector<at::Tensor> before;
  for (const at::Tensor& each : all) before.push_back(each.clone());
  const auto work = AllReduce(all);
  hook().EvictAll();
  for (const at::Tensor& each : all) EXPECT_FALSE(IsCold(each));
  work->End();
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(all[i].equal(before[i] + 1)) << i;
  }
  EXPECT_GT(hook().stats().over_budget_bytes, 0);
  EXPECT_EQ(hook().stats().failures, 0);
}

TEST_P(HookCollectivesTest, ACloseWaitsOrNamesTheOperation) {
  const at::Tensor t = Cold("t", {100});
  const at::Tensor before = t.clone();
  const auto work = AllReduce({t});
  std::thread ends;
  if (GetParam()) {
    ends = std::thread([&] {
      absl::SleepFor(absl::Milliseconds(200));
      work->End();
    });
  } else {
    const absl::Status closed = hook().Close(Hook::AtClose::kRestore);
    EXPECT_TRUE(absl::IsFailedPrecondition(closed)) << closed;
    EXPECT_THAT(std::string(closed.message()), HasSubstr("c10d::allreduce_"));
    EXPECT_FALSE(IsCold(t));
    work->End();
  }
  const absl::Status closed = hook().Close(Hook::AtClose::kRestore);
  EXPECT_TRUE(closed.ok()) << closed;
  if (ends.joinable()) ends.join();
  EXPECT_TRUE(t.equal(before + 1));
}

TEST_P(HookCollectivesTest, ACloseThatWaitsInVainSaysSo) {
  Make(64 << 10, 0, {.patience = absl::Milliseconds(100)});
  const at::Tensor t = Cold("t", {100});
  const auto work = AllReduce({t});
  const absl::Status closed = hook().Close(Hook::AtClose::kRestore);
  EXPECT_TRUE(absl::IsFailedPrecondition(closed)) << closed;
  work->End();
}

TEST_P(HookCollectivesTest, WhatIsInUseIsNotTakenOver) {
  ManageOther();  // from here on Works are known
  const at::Tensor t = at::zeros({100});
  const auto work = AllReduce({t});
  const absl::Status managed = hook().Manage({{"t", t}});
  EXPECT_TRUE(absl::IsFailedPrecondition(managed)) << managed;
  EXPECT_THAT(std::string(managed.message()), HasSubstr("c10d::allreduce_"));
  work->End();
  if (!GetParam()) Miss();
  Managed("t", t);
  EXPECT_TRUE(t.eq(1).all().item<bool>());
}

TEST_P(HookCollectivesTest, AFailedFetchIsSaidBeforeAnythingIsSent) {
  const at::Tensor t = Cold("t", {100});
  EvictFromMemory();
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  const std::string said = TextThrown([&] { AllReduce({t}); });
  EXPECT_THAT(said, HasSubstr("terrace: 't'"));
  EXPECT_FALSE(backend().Take().defined());
  world().faults().Clear();
}

TEST_P(HookCollectivesTest, WhatIsOnlySentStaysClean) {
  const at::Tensor t = Cold("t", {100});
  std::vector<at::Tensor> tensors = {t};
  group().send(tensors, 0, 0);
  backend().Take()->End();
  const int64_t drops = hook().stats().clean_drops;
  ManageOther();
  Miss();
  Miss();
  EXPECT_TRUE(IsCold(t));
  EXPECT_GT(hook().stats().clean_drops, drops);
}

TEST_P(HookCollectivesTest, AForkedChildEndsNothing) {
  const at::Tensor t = Cold("t", {100});
  const at::Tensor before = t.clone();
  auto work = AllReduce({t});
  EXPECT_TRUE(InChild([&] {
    work.reset();
    return true;
  }));
  EXPECT_FALSE(IsCold(t));
  hook().EvictAll();
  EXPECT_FALSE(IsCold(t));
  work->End();
  EXPECT_TRUE(t.equal(before + 1));
}

}  // namespace
}  // namespace terrace
