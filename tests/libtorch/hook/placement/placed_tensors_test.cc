// Tensors that operations make in a hook's scope of placement, beside the same
// program without a hook.
#include <torch/torch.h>

#include <atomic>
#include <future>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

constexpr int64_t kElements = 32 << 10;  // 128 KiB

class PlacedTensorsTest : public HookTest {
 protected:
  PlacementScope Scope() {
    absl::StatusOr<PlacementScope> scope = hook().Place();
    EXPECT_TRUE(scope.ok()) << scope.status();
    return scope.ok() ? *std::move(scope) : PlacementScope();
  }
  static at::Tensor Made(int64_t number) {
    return at::full({kElements}, static_cast<double>(number), at::kFloat);
  }
  static float Sum(const at::Tensor& tensor) {
    return tensor.sum(at::kDouble).item<double>();
  }
};

TEST_F(PlacedTensorsTest, OneIsManagedOnceItLeavesItsOperation) {
  Make(1 << 20);
  at::Tensor tensor;
  {
    const PlacementScope scope = Scope();
    tensor = Made(3);
    EXPECT_TRUE(hook().Manages(tensor));
    EXPECT_EQ(hook().EvictAll(), 1);
    EXPECT_TRUE(IsCold(tensor));
    EXPECT_EQ(Sum(tensor), 3 * kElements);
  }
  tensor.add_(1);  // beyond the scope too
  EvictFromMemory();
  EXPECT_EQ(Sum(tensor), 4 * kElements);
  EXPECT_EQ(hook().stats().placed.tensors, 1);
  EXPECT_EQ(hook().stats().placed.bytes, 4 * kElements);
  const int64_t managed = hook().stats().managed_tensors;
  tensor.reset();
  EXPECT_EQ(hook().stats().managed_tensors, managed - 1);
}

TEST_F(PlacedTensorsTest, SmallOnesAndWhatOthersMakeStayOrdinary) {
  Make(1 << 20);
  const at::Tensor before = Made(1);
  at::Tensor small;
  at::Tensor least;
  at::Tensor anothers;
  {
    const PlacementScope scope = Scope();
    small = at::ones({(64 << 10) - 1}, at::kByte);
    least = at::ones({64 << 10}, at::kByte);
    std::thread([&] { anothers = Made(2); }).join();
    before.add_(1);
  }
  const at::Tensor after = Made(3);
  EXPECT_TRUE(hook().Manages(least));
  for (const at::Tensor& tensor : {before, small, anothers, after}) {
    EXPECT_FALSE(hook().Manages(tensor));
  }
  EXPECT_EQ(hook().stats().placed.left_tensors, 0);
}

TEST_F(PlacedTensorsTest, WhatAnOperationMakesForItselfNeverIs) {
  Make(4 << 20);
  const at::Tensor matrix = at::randn({256, 256});
  const at::Tensor expected = at::linalg_matrix_exp(matrix);
  const PlacementScope scope = Scope();
  const at::Tensor result = at::linalg_matrix_exp(matrix);
  EXPECT_TRUE(hook().Manages(result));
  EXPECT_EQ(hook().stats().placed.tensors, 1);
  EXPECT_EQ(hook().stats().managed_tensors, 1);
  EXPECT_TRUE(at::equal(result, expected));
}

TEST_F(PlacedTensorsTest, EachOutputAndEachViewIsOfItsStorage) {
  Make(4 << 20);
  const at::Tensor matrix = at::randn({256, 256});
  const PlacementScope scope = Scope();
  const auto [values, places] = at::sort(matrix, 0);
  const at::Tensor half = values.narrow(0, 0, 128);
  EXPECT_TRUE(hook().Manages(values) && hook().Manages(places));
  EXPECT_TRUE(hook().Manages(half));
  EXPECT_EQ(hook().stats().placed.tensors, 2);
  hook().EvictAll();
  EXPECT_TRUE(at::equal(half, std::get<0>(matrix.sort(0)).narrow(0, 0, 128)));
}

TEST_F(PlacedTensorsTest, OneWithoutContentsIsManagedOnceItIsWritten) {
  Make(4 << 20);
  const PlacementScope scope = Scope();
  at::Tensor filled = at::empty({kElements});
  const at::Tensor view = filled.detach().view({2, -1});
  EXPECT_FALSE(hook().Manages(filled));
  filled.narrow(0, 0, 10).fill_(1);  // also by a view
  EXPECT_TRUE(hook().Manages(filled));
  filled.fill_(2);
  hook().EvictAll();
  EXPECT_EQ(Sum(view), 2 * kElements);
  at::Tensor out = at::empty({kElements});
  at::add_out(out, filled, filled);
  EXPECT_TRUE(hook().Manages(out));
  EXPECT_EQ(Sum(out), 4 * kElements);
}

TEST_F(PlacedTensorsTest, OneThatIsReadFirstWasFilledByItsAddressAndStays) {
  Make(4 << 20);
  const PlacementScope scope = Scope();
  at::Tensor raw = at::empty({kElements});
  float* const data = raw.mutable_data_ptr<float>();
  for (int64_t i = 0; i < kElements; ++i) data[i] = 2;
  EXPECT_EQ(Sum(raw), 2 * kElements);
  raw.mul_(3);
  EXPECT_FALSE(hook().Manages(raw));
  EXPECT_EQ(raw.const_data_ptr(), data);
  EXPECT_EQ(data[0], 6);
}

// Its memory would else end while that operation has it.
TEST_F(PlacedTensorsTest, OneThatAnotherThreadsOperationHasStays) {
  Make(4 << 20);
  const PlacementScope scope = Scope();
  for (const bool is_during : {false, true}) {
    at::Tensor tensor = at::empty({kElements});
    const void* const data = tensor.const_data_ptr();
    std::promise<void> begun;
    std::promise<void> written;
    std::thread other([&] {
      at::RecordFunction operation(at::RecordScope::FUNCTION);
      const std::vector<c10::IValue> inputs = {tensor};
      operation.before("aten::op", &inputs);
      if (!is_during) return;
      begun.set_value();
      written.get_future().wait();
    });
    if (is_during) {
      begun.get_future().wait();
    } else {
      other.join();
    }
    tensor.fill_(3);
    EXPECT_FALSE(hook().Manages(tensor));
    EXPECT_EQ(tensor.const_data_ptr(), data);
    if (!is_during) continue;
    written.set_value();
    other.join();
  }
  at::Tensor own = at::empty({kElements});
  own.fill_(3);
  EXPECT_TRUE(hook().Manages(own));
}

// Two threads write a tensor's halves as it becomes a managed one.
TEST_F(PlacedTensorsTest, AnotherThreadsOperationWaitsUntilItIsAdopted) {
  Make(4 << 20);
  const PlacementScope scope = Scope();
  int64_t managed = 0;
  for (int i = 0; i < 300; ++i) {
    at::Tensor tensor = at::empty({kElements});
    std::atomic<bool> begins = false;
    std::thread other([&, half = tensor.narrow(0, 0, kElements / 2)] {
      while (!begins) {
      }
      for (int turn = 0; turn < i % 50; ++turn) {
        at::ones({10});
      }
      half.fill_(1);
    });
    begins = true;
    tensor.narrow(0, kElements / 2, kElements / 2).fill_(2);
    other.join();
    ASSERT_EQ(Sum(tensor), kElements / 2 * 3);
    if (hook().Manages(tensor)) ++managed;
  }
  EXPECT_GT(managed, 0);
}

TEST_F(PlacedTensorsTest, WhatHasNoRoomStaysOrdinary) {
  Make(1 << 20);
  const PlacementScope scope = Scope();
  const at::Tensor large = at::ones({1 << 20});
  EXPECT_FALSE(hook().Manages(large));
  EXPECT_EQ(Sum(large), 1 << 20);
  EXPECT_EQ(hook().stats().placed.left_tensors, 1);
  EXPECT_EQ(hook().stats().placed.left_bytes, 4 << 20);
  EXPECT_TRUE(hook().error().ok());
}

// A cache that grows by concatenation beyond what memory has, and one that is
// written in its place.
TEST_F(PlacedTensorsTest, CachesBeyondTheBudgetHaveTheSameBits) {
  constexpr int kLayers = 7;
  constexpr int kSteps = 24;
  const auto run = [&] {
    at::manual_seed(7);
    std::vector<at::Tensor> grown(kLayers);
    std::vector<at::Tensor> fixed;
    for (int i = 0; i < kLayers; ++i) {
      grown[i] = at::randn({96, 256});
      fixed.push_back(at::zeros({128, 256}));
    }
    at::Tensor hidden = at::randn({1, 256});
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < kLayers; ++i) {
        grown[i] = at::cat({grown[i], hidden});
        fixed[i].index_copy_(0, at::full({1}, step, at::kLong), hidden);
        const at::Tensor scores =
            at::softmax(at::matmul(hidden, grown[i].t()), -1);
        hidden =
            at::matmul(scores, grown[i]) +
            at::matmul(at::tanh(at::matmul(hidden, fixed[i].t())), fixed[i]);
        hidden = hidden / hidden.norm();
      }
    }
    std::vector<at::Tensor> all = {hidden};
    for (const auto* const each : {&grown, &fixed}) {
      all.insert(all.end(), each->begin(), each->end());
    }
    return all;
  };
  at::set_num_threads(1);
  const std::vector<at::Tensor> expected = run();
  Make(512 << 10);  // a third of what it has at the end
  std::vector<at::Tensor> result;
  {
    const PlacementScope scope = Scope();
    result = run();
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(result[i], expected[i])) << i;
  }
  const HookStats stats = hook().stats();
  EXPECT_GE(stats.managed_bytes, 3 * (512 << 10));
  EXPECT_GT(stats.fetched_bytes, 0);
  EXPECT_LE(world().runtime().GetStats().host.peak_bytes, 512 << 10);
  EXPECT_EQ(stats.placed.left_tensors, 0);
}

TEST_F(PlacedTensorsTest, TrainingInAScopeHasTheSameGradients) {
  const at::Tensor input = at::randn({256, 128});
  const auto run = [&] {
    at::Tensor weight =
        at::arange(128 * 128, at::kFloat).view({128, 128}).div_(1e6);
    weight.requires_grad_();
    at::Tensor hidden = input;
    for (int i = 0; i < 4; ++i) hidden = at::gelu(at::matmul(hidden, weight));
    hidden.pow(2).sum().backward();
    return weight.grad();
  };
  at::set_num_threads(1);
  const at::Tensor expected = run();
  Make(512 << 10);
  at::Tensor gradient;
  {
    const PlacementScope scope = Scope();
    gradient = run();
  }
  EXPECT_TRUE(at::equal(gradient, expected));
  EXPECT_FALSE(hook().Manages(gradient));  // backward has made it
  EXPECT_GT(hook().stats().placed.tensors, 8);
}

// A program's own function of autograd is a frame around operations.
TEST_F(PlacedTensorsTest, WhatALongFunctionOfAutogradMakesLeavesBeforeItsEnd) {
  Make(512 << 10);
  const PlacementScope scope = Scope();
  at::RecordFunction function(at::RecordScope::FUNCTION);
  function.before("Long");
  std::vector<at::Tensor> made;
  for (int i = 0; i < 16; ++i) made.push_back(Made(i));
  EXPECT_EQ(hook().stats().placed.left_tensors, 0);
  EXPECT_EQ(hook().EvictAll(), 3);  // the others left for their successors
  for (int i = 0; i < 16; ++i) EXPECT_EQ(Sum(made[i]), i * kElements);
}

TEST_F(PlacedTensorsTest, WhatAutogradSavesIsManagedBesideScopes) {
  Make(1 << 20, /*spare_bytes=*/1 << 20);
  hook().BeginSaving(1 << 20);
  const at::Tensor before = Made(1);
  { const PlacementScope scope = Scope(); }
  const at::Tensor after = Made(2);
  for (const at::Tensor& tensor : {before, after}) {
    at::RecordFunction operation(at::RecordScope::FUNCTION);
    operation.before("aten::op");
    EXPECT_TRUE(*hook().ManageSaved(tensor));
  }
}

TEST_F(PlacedTensorsTest, AClosedHookTakesNoMore) {
  Make(1 << 20);
  const PlacementScope scope = Scope();
  const at::Tensor tensor = Made(3);
  ASSERT_TRUE(hook().Close(Hook::AtClose::kRestore).ok());
  EXPECT_FALSE(hook().Manages(tensor));
  EXPECT_EQ(Sum(tensor), 3 * kElements);
  const at::Tensor later = Made(4);
  EXPECT_FALSE(hook().Manages(later));
  EXPECT_EQ(Sum(later), 4 * kElements);
  EXPECT_TRUE(absl::IsFailedPrecondition(hook().Place().status()));
  EndHook();  // the scope outlives it
  EXPECT_EQ(Sum(Made(5)), 5 * kElements);
}

TEST_F(PlacedTensorsTest, AnyThreadEndsAScope) {
  Make(4 << 20);
  PlacementScope scope = Scope();
  const at::Tensor within = Made(1);
  std::thread([moved = std::move(scope)]() mutable { moved.End(); }).join();
  const at::Tensor after = Made(2);
  EXPECT_TRUE(hook().Manages(within));
  EXPECT_FALSE(hook().Manages(after));
  const PlacementScope again = Scope();
  EXPECT_TRUE(hook().Manages(Made(3)));
}

TEST_F(PlacedTensorsTest, AChildMakesOrdinaryOnes) {
  Make(1 << 20);
  const PlacementScope scope = Scope();
  at::Tensor empty = at::empty({kElements});  // in newborn memory
  std::atomic<bool> ends = false;
  // A thread that has the newborn memory's lock as often as it can.
  std::thread other([&] {
    const PlacementScope its = Scope();
    while (!ends) at::empty({kElements});
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(InChild([&] {
      empty.reset();
      const at::Tensor made = Made(5);
      return !hook().Manages(made) && Sum(made) == 5 * kElements &&
             absl::IsCancelled(hook().Place().status());
    }));
  }
  ends = true;
  other.join();
}

}  // namespace
}  // namespace terrace
