// In which order copies leave: against a list that is sorted anew each time.
#include "runtime/residency/leaving_order.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAreArray;

class LeavingOrderTest : public testing::Test {
 protected:
  LeavingOrderTest() { planner_.Merge(); }

  Tensor& Add(int64_t size_bytes = 4096, int64_t step_number = -1) {
    const auto id = static_cast<int64_t>(tensors_.size());
    tensors_.push_back(
        std::make_unique<Tensor>(TensorSpec{.name = std::to_string(id),
                                            .size_bytes = size_bytes,
                                            .step_number = step_number},
                                 TensorId{id}));
    return *tensors_.back();
  }
  void BeginStep() {
    planner_.Open(0);
    planner_.BeginStep(0);
  }
  void Use(LeavingOrder& order, Tensor& tensor) {
    planner_.OnUse(0, 0, KeyOf(tensor), ResidentBytes(tensor.spec.size_bytes));
    order.OnUse(tensor);
  }
  static std::vector<Tensor*> First(LeavingOrder& order, int64_t bytes) {
    return order.First(bytes, [](const Tensor&) { return true; });
  }

  TracePlanner planner_;
  std::vector<std::unique_ptr<Tensor>> tensors_;
};

TEST_F(LeavingOrderTest, WhatIsUsedLastFromNowOnLeavesFirst) {
  Tensor& a = Add();
  Tensor& b = Add();
  Tensor& c = Add();
  LeavingOrder order(planner_, /*by_next_use=*/true);
  for (int step = 0; step < 2; ++step) {
    BeginStep();
    for (Tensor* const each : {&a, &b, &c}) Use(order, *each);
  }
  BeginStep();
  EXPECT_THAT(First(order, INT64_MAX), ElementsAre(&c, &b, &a));
  Use(order, a);  // its next use is in the step after this
  EXPECT_THAT(First(order, INT64_MAX), ElementsAre(&a, &c, &b));
  EXPECT_THAT(First(order, 1), ElementsAre(&a));
  EXPECT_THAT(First(order, 8193), ElementsAre(&a, &c));
}

TEST_F(LeavingOrderTest, WhatNoStepTellsOfLeavesFirstTheOldestUseAhead) {
  Tensor& known = Add();
  LeavingOrder order(planner_, /*by_next_use=*/true);
  BeginStep();
  Use(order, known);
  BeginStep();
  Tensor& a = Add();
  Tensor& b = Add();
  order.OnUse(a);
  order.OnUse(b);
  order.OnUse(a);
  EXPECT_THAT(First(order, INT64_MAX), ElementsAre(&b, &a, &known));
}

TEST_F(LeavingOrderTest, ByRecencyTheOldestUseLeavesFirst) {
  Tensor& a = Add();
  Tensor& b = Add();
  LeavingOrder order(planner_, /*by_next_use=*/false);
  for (int step = 0; step < 2; ++step) {
    BeginStep();
    for (Tensor* const each : {&a, &b}) Use(order, *each);
  }
  EXPECT_THAT(First(order, INT64_MAX), ElementsAre(&a, &b));
}

TEST_F(LeavingOrderTest, ANumberInTheStepTellsOfATensorMadeAnew) {
  Tensor& weight = Add();
  LeavingOrder order(planner_, /*by_next_use=*/true);
  BeginStep();
  Use(order, Add(4096, /*step_number=*/5));
  Use(order, weight);
  BeginStep();
  Tensor& activation = Add(4096, /*step_number=*/5);
  Use(order, activation);  // not before the next step again
  Use(order, weight);
  order.Forget(*tensors_[1]);
  BeginStep();
  EXPECT_THAT(First(order, INT64_MAX), ElementsAre(&weight, &activation));
}

TEST_F(LeavingOrderTest, WhatIsSetAsideDoesNotLeaveUntilItIsPutBack) {
  Tensor& a = Add();
  LeavingOrder order(planner_, /*by_next_use=*/true);
  order.OnUse(a);
  order.SetAside(a);
  EXPECT_THAT(First(order, INT64_MAX), IsEmpty());
  order.PutBack(a);
  order.PutBack(a);
  EXPECT_EQ(order.size(), 1u);
  EXPECT_THAT(order.First(INT64_MAX, [](const Tensor&) { return false; }),
              IsEmpty());
  order.Forget(a);
  EXPECT_EQ(order.size(), 0u);
}

// What a step passes over without a use is used a step later.
// Random tensors in an order, which some of them leave.
class RandomUses : public LeavingOrderTest {
 protected:
  RandomUses() {
    for (int i = 0; i < 40; ++i) Add(static_cast<int64_t>(1 + Draw(20'000)));
    last_uses_.resize(tensors_.size(), -1);
    stands_.resize(tensors_.size(), false);
  }

  uint64_t Draw(uint64_t below) { return random_() % below; }
  void UseOne(size_t at) {
    Use(order_, *tensors_[at]);
    last_uses_[at] = ++uses_;
    stands_[at] = true;
  }
  void MaySetAside(size_t at) {
    const uint64_t what = Draw(10);
    if (what == 0) order_.SetAside(*tensors_[at]);
    if (what == 1) order_.Forget(*tensors_[at]);
    if (what <= 1) stands_[at] = false;
  }
  std::vector<Tensor*> Standing() const {
    std::vector<Tensor*> standing;
    for (size_t each = 0; each < tensors_.size(); ++each) {
      if (stands_[each]) standing.push_back(tensors_[each].get());
    }
    return standing;
  }
  std::vector<Tensor*> Sorted() const {
    std::vector<Tensor*> sorted = Standing();
    std::sort(sorted.begin(), sorted.end(), [&](Tensor* a, Tensor* b) {
      const int64_t next_a = planner_.NextUse(KeyOf(*a));
      const int64_t next_b = planner_.NextUse(KeyOf(*b));
      if (next_a != next_b) return next_a > next_b;
      return last_uses_[static_cast<size_t>(a->id.value)] <
             last_uses_[static_cast<size_t>(b->id.value)];
    });
    return sorted;
  }

  std::mt19937_64 random_{7};
  LeavingOrder order_{planner_, /*by_next_use=*/true};

 private:
  int64_t uses_ = 0;
  std::vector<int64_t> last_uses_;
  std::vector<bool> stands_;
};

TEST_F(RandomUses, InTheStepsOrderAgreeWithASortedList) {
  std::vector<size_t> step;
  for (int i = 0; i < 97; ++i) step.push_back(Draw(tensors_.size()));
  for (size_t i = 0; i < 6000; ++i) {
    if (i % step.size() == 0) BeginStep();
    const size_t at = step[i % step.size()];
    UseOne(at);
    MaySetAside(at);
    ASSERT_EQ(First(order_, INT64_MAX), Sorted()) << i;
  }
}

// A use that is late is expected later with each other one, and its place is
// found anew once it is due by the one that it had.
TEST_F(RandomUses, OutOfTheStepsOrderAgreeAsAStepBegins) {
  for (size_t i = 0; i < 6000; ++i) {
    if (i % 97 == 0) {
      BeginStep();
      ASSERT_EQ(First(order_, INT64_MAX), Sorted()) << i;
    }
    const size_t at = Draw(3) == 0 ? Draw(tensors_.size()) : i % 97 % 40;
    UseOne(at);
    MaySetAside(at);
    ASSERT_THAT(First(order_, INT64_MAX),
                UnorderedElementsAreArray(Standing()));
  }
}

}  // namespace
}  // namespace terrace
