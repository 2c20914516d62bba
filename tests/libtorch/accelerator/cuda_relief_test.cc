// What needs the CUDA library and no device.
#include "libtorch/accelerator/cuda_relief.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace terrace {
namespace {

struct Source final : ReliefSource {
  bool IsCapturing() override { return false; }
  bool IsUnderBudget() override { return false; }
  int64_t DropClean() override {
    ++calls;
    return 8;
  }

  int calls = 0;
};

// As the allocator calls all that are registered.
bool Execute() {
  c10::Registry<std::string, std::unique_ptr<c10::FreeMemoryCallback>>* const
      registry = c10::FreeCudaMemoryCallbacksRegistry();
  return registry->Create("terrace_relief")->Execute();
}

TEST(CudaRelief, TheAllocatorsCallReachesThePort) {
  ASSERT_TRUE(c10::FreeCudaMemoryCallbacksRegistry()->Has("terrace_relief"));
  EXPECT_FALSE(Execute());
  Source source;
  ASSERT_TRUE(CudaRelief().Attach(&source));
  EXPECT_TRUE(Execute());
  EXPECT_EQ(source.calls, 1);
  CudaRelief().Detach();
  EXPECT_FALSE(Execute());
  EXPECT_EQ(source.calls, 1);
}

}  // namespace
}  // namespace terrace
