// The module for LibTorch's CUDA, beside LibTorch's own library for it. It
// loads without a GPU and without a driver, and then says what is missing.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/accelerator/torch_cuda.h"

namespace terrace {
namespace {

using testing::HasSubstr;

bool HasDevice() {
  return c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount() > 0;
}

// As the allocator calls all that are registered.
bool Execute() {
  c10::Registry<std::string, std::unique_ptr<c10::FreeMemoryCallback>>* const
      registry = c10::FreeCudaMemoryCallbacksRegistry();
  return registry->Create("terrace_relief")->Execute();
}

int relieved = 0;
int Relieve() { return ++relieved; }
int RelieveOther() { return 1; }

TEST(TorchCudaModule, IsFoundBesideTheProgram) {
  const auto found = LoadTorchCuda();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->version, TERRACE_TORCH_CUDA_CALLS_VERSION);
  EXPECT_STREQ((*found)->runtime->error_name((*found)->runtime->no_memory),
               "cudaErrorMemoryAllocation");
}

TEST(TorchCudaModule, TheAllocatorsCallReachesOneFunction) {
  const auto calls = LoadTorchCuda();
  ASSERT_TRUE(calls.ok()) << calls.status();
  ASSERT_TRUE(c10::FreeCudaMemoryCallbacksRegistry()->Has("terrace_relief"));
  (*calls)->set_relief(nullptr);
  EXPECT_FALSE(Execute());
  EXPECT_NE((*calls)->set_relief(&Relieve), 0);
  EXPECT_NE((*calls)->set_relief(&Relieve), 0);
  EXPECT_EQ((*calls)->set_relief(&RelieveOther), 0);
  EXPECT_TRUE(Execute());
  EXPECT_EQ(relieved, 1);
  EXPECT_NE((*calls)->set_relief(nullptr), 0);
  EXPECT_FALSE(Execute());
  EXPECT_EQ(relieved, 1);
}

TEST(TorchCudaModule, WithoutADeviceItIsUnavailable) {
  if (HasDevice()) GTEST_SKIP() << "there is one";
  const auto cuda = TorchCuda::Open();
  EXPECT_TRUE(absl::IsUnavailable(cuda.status()));
  EXPECT_EQ(cuda.status().message(), "LibTorch sees no device of CUDA");
}

TEST(TorchCudaModule, WithoutADeviceEachCallSaysWhyInOneLine) {
  if (HasDevice()) GTEST_SKIP() << "there is one";
  const auto calls = LoadTorchCuda();
  ASSERT_TRUE(calls.ok()) << calls.status();
  const TorchCuda cuda(**calls);
  std::byte bytes[64] = {};
  for (const absl::Status& status :
       {cuda.MemoryOf(0).status(), cuda.IsCapturing(0, 0).status(),
        cuda.Record(0, 0).status(), cuda.RegisterHost(0, absl::MakeSpan(bytes)),
        cuda.UnregisterHost(0, bytes)}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    const std::string message(status.message());
    EXPECT_THAT(message, testing::StartsWith("cuda:0: cuda"));
    EXPECT_THAT(message,
                testing::ContainsRegex("cudaError[A-Za-z]+ \\([0-9]+\\): "));
    EXPECT_THAT(message, testing::Not(HasSubstr("\n")));
  }
}

TEST(TorchCudaModule, ADeviceAnswersEachCall) {
  if (!HasDevice()) GTEST_SKIP() << "no GPU";
  const auto cuda = TorchCuda::Open();
  ASSERT_TRUE(cuda.ok()) << cuda.status();
  const auto memory = cuda->MemoryOf(0);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_GT(memory->free_bytes, 0);
  EXPECT_GE(memory->total_bytes, memory->free_bytes);
  const auto is_capturing = cuda->IsCapturing(0, 0);
  ASSERT_TRUE(is_capturing.ok()) << is_capturing.status();
  EXPECT_FALSE(*is_capturing);
  auto event = cuda->Record(0, 0);
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_TRUE(event->Wait().ok());

  constexpr size_t kBytes = 1 << 20;
  const std::unique_ptr<void, decltype(&std::free)> pages(
      std::aligned_alloc(4096, kBytes), &std::free);
  auto* const begin = static_cast<std::byte*>(pages.get());
  ASSERT_TRUE(cuda->RegisterHost(0, {begin, kBytes}).ok());
  EXPECT_TRUE(absl::IsUnavailable(cuda->RegisterHost(0, {begin, kBytes})));
  EXPECT_TRUE(cuda->UnregisterHost(0, begin).ok());
  EXPECT_TRUE(absl::IsUnavailable(cuda->MemoryOf(4096).status()));
}

struct Source final : ReliefSource {
  bool IsCapturing() override { return false; }
  bool IsUnderBudget() override { return false; }
  int64_t DropClean() override { return 8; }
};

TEST(TorchCudaModule, WithADeviceTheAllocatorsCallReachesThePort) {
  if (!HasDevice()) GTEST_SKIP() << "no GPU";
  ASSERT_TRUE(TorchCuda::Open().ok());
  EXPECT_FALSE(Execute());
  Source source;
  ASSERT_TRUE(TorchCuda::relief().Attach(&source));
  EXPECT_TRUE(Execute());
  TorchCuda::relief().Detach();
  EXPECT_FALSE(Execute());
}

}  // namespace
}  // namespace terrace
