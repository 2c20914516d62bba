// What a fetch costs the mover: a push, the end of a pin, and a sixteenth of a
// message that tells uses. They are counted where they arrive.
#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

constexpr int kTensors = 256;
constexpr int64_t kElements = 1023;  // with its header two pages
constexpr int64_t kBytes = 8192;     // in memory

class HookRequestsTest : public HookTest {
 protected:
  // With memory for so many of the model's tensors.
  void MakeModel(int64_t tensors_in_memory) {
    Make(tensors_in_memory * kBytes, tensors_in_memory * kBytes / 4);
    for (int i = 0; i < kTensors; ++i) {
      tensors_.push_back(Managed("t" + std::to_string(i),
                                 at::full({kElements}, static_cast<float>(i))));
    }
  }
  void Forward() {
    for (int i = 0; i < kTensors; ++i) {
      EXPECT_EQ(tensors_[static_cast<size_t>(i)].sum().item<double>(),
                static_cast<double>(i) * kElements);
    }
  }
  int64_t requests() { return world().runtime().GetStats().requests; }

 private:
  std::vector<at::Tensor> tensors_;
};

TEST_F(HookRequestsTest, AForwardOverWhatIsAwayHasTwoAndASixteenthATensor) {
  MakeModel(kTensors + 16);
  Forward();
  hook().EvictAll();
  const int64_t before = requests();
  Forward();
  // What EvictAll ended counts before, the question for the counts once.
  EXPECT_LE(requests() - before, kTensors + kTensors / 16 + 1);
  const int64_t fetched = requests();
  hook().EvictAll();
  EXPECT_LE(requests() - fetched, kTensors + 1);
}

TEST_F(HookRequestsTest, WhereOneLeavesForEachItIsTheSame) {
  MakeModel(kTensors / 4);
  Forward();
  const int64_t fetches = hook().stats().fetches;
  const int64_t before = requests();
  Forward();
  Forward();
  EXPECT_GE(hook().stats().fetches - fetches, kTensors);
  EXPECT_LE(requests() - before, 2 * (2 * kTensors + kTensors / 16) + 1);
}

TEST_F(HookRequestsTest, WhatIsThereIsToldManyAtATime) {
  MakeModel(kTensors + 16);
  Forward();
  const int64_t before = requests();
  for (int pass = 0; pass < 4; ++pass) Forward();
  EXPECT_LE(requests() - before, 4 * kTensors / 16 + 1);
}

}  // namespace
}  // namespace terrace
