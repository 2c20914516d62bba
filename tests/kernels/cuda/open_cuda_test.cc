// CUDA's module: looked for when it is asked for, and told of in one sentence
// where it cannot be had.
#include "kernels/cuda/open_cuda.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string MessageOf(const absl::Status& status) {
  return std::string(status.message());
}

TEST(OpenCuda, APlaceThatIsNoDeviceIsTheCallersFault) {
  for (const char* place : {"", "cuda", "cuda:", "cuda:x", "cuda:-1", "gpu:0",
                            "cuda:0x", "cuda:99999999999"}) {
    const auto device = OpenCuda(place);
    EXPECT_TRUE(absl::IsInvalidArgument(device.status())) << place;
    EXPECT_THAT(MessageOf(device.status()),
                HasSubstr("names no device of CUDA, as cuda:0 does"));
  }
}

TEST(OpenCuda, AModuleThatIsNotThereIsUnavailable) {
  const auto calls = LoadCuda("/nowhere/libterrace_cuda.so");
  EXPECT_TRUE(absl::IsUnavailable(calls.status()));
  EXPECT_THAT(MessageOf(calls.status()),
              StartsWith("no CUDA module: /nowhere/libterrace_cuda.so: "));
}

TEST(OpenCuda, ALibraryThatIsNoModuleIsRefused) {
  const auto calls = LoadCuda("libm.so.6");
  EXPECT_TRUE(absl::IsUnavailable(calls.status()));
  EXPECT_EQ(MessageOf(calls.status()),
            "no CUDA module: libm.so.6 has no terrace_cuda_calls");
}

TEST(OpenCuda, AModuleOfAnotherVersionIsRefused) {
  const auto calls = LoadCuda(TERRACE_OTHER_MODULE);
  EXPECT_TRUE(absl::IsUnavailable(calls.status()));
  EXPECT_THAT(MessageOf(calls.status()), HasSubstr("of version 99, not 1"));
}

#ifdef TERRACE_CUDA_MODULE

TEST(OpenCuda, TheModuleIsFoundBesideTheProgram) {
  const auto found = LoadCuda();
  const auto named = LoadCuda(TERRACE_CUDA_MODULE);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(*found, *named);
  EXPECT_EQ((*found)->version, TERRACE_CUDA_CALLS_VERSION);
  EXPECT_STREQ((*found)->error_name((*found)->no_memory),
               "cudaErrorMemoryAllocation");
  EXPECT_STREQ((*found)->error_name((*found)->not_ready), "cudaErrorNotReady");
}

// With or without a driver and a GPU: what is missing has CUDA's code.
TEST(OpenCuda, ADeviceIsOpenedOrCudaSaysWhyNot) {
  const auto device = OpenCuda("cuda:0");
  if (device.ok()) {
    EXPECT_EQ((*device)->name(), "cuda:0");
    EXPECT_TRUE((*device)->Health().ok());
  } else {
    EXPECT_TRUE(absl::IsUnavailable(device.status()));
    EXPECT_THAT(MessageOf(device.status()),
                AnyOf(HasSubstr("cudaErrorInsufficientDriver (35)"),
                      HasSubstr("cudaErrorNoDevice (100)"),
                      HasSubstr("cudaErrorSystemDriverMismatch (803)")));
    EXPECT_THAT(MessageOf(device.status()), Not(HasSubstr("\n")));
  }
  EXPECT_TRUE(absl::IsUnavailable(OpenCuda("cuda:4096").status()));
}

#else

TEST(OpenCuda, WithoutTheModuleItSaysWhereItWasLookedFor) {
  const auto device = OpenCuda("cuda:0");
  EXPECT_TRUE(absl::IsUnavailable(device.status()));
  EXPECT_THAT(MessageOf(device.status()),
              StartsWith("cuda:0: no CUDA module: libterrace_cuda.so: "));
  EXPECT_THAT(MessageOf(device.status()), HasSubstr("/libterrace_cuda.so"));
  EXPECT_THAT(MessageOf(device.status()), Not(HasSubstr("\n")));
}

#endif

}  // namespace
}  // namespace terrace
