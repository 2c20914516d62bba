// LibTorch's CUDA in a process that has none: what is missing is told, nothing
// is loaded, and the calls of a module become Statuses.
#include "libtorch/accelerator/torch_cuda.h"

#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int kNoMemory = 2;
constexpr int kNoDevice = 100;

// What the scripted calls answer, and what they were asked.
struct Script {
  int code = 0;
  int record_code = 0;
  int is_capturing = 0;
  int forgotten = 0;
  int events = 0;
};
Script script;

const char* ErrorName(int code) {
  return code == kNoMemory ? "cudaErrorMemoryAllocation" : "cudaErrorNoDevice";
}
const char* ErrorText(int) { return "as scripted"; }
void ForgetError() { ++script.forgotten; }
int Memory(int, size_t* free, size_t* total) {
  *free = 3;
  *total = 8;
  return script.code;
}
int RegisterHost(int, void*, size_t) { return script.code; }
int UnregisterHost(int, void*) { return script.code; }
int DestroyEvent(int, void*) {
  --script.events;
  return 0;
}
int IsCapturing(int, int64_t, int* is_capturing) {
  *is_capturing = script.is_capturing;
  return script.code;
}
int MakeSleepingEvent(int, void** event) {
  *event = &script;
  if (script.code == 0) ++script.events;
  return script.code;
}
int Record(int, void*, int64_t) { return script.record_code; }
int Wait(int, void*) { return script.code; }

constexpr TerraceCudaCalls kRuntime = {
    .version = TERRACE_CUDA_CALLS_VERSION,
    .no_memory = kNoMemory,
    .error_name = ErrorName,
    .error_text = ErrorText,
    .forget_error = ForgetError,
    .memory = Memory,
    .register_host = RegisterHost,
    .unregister_host = UnregisterHost,
    .destroy_event = DestroyEvent,
};
constexpr TerraceTorchCudaCalls kCalls = {
    .version = TERRACE_TORCH_CUDA_CALLS_VERSION,
    .runtime = &kRuntime,
    .is_capturing = IsCapturing,
    .make_sleeping_event = MakeSleepingEvent,
    .record = Record,
    .wait = Wait,
};

std::string MessageOf(const absl::Status& status) {
  return std::string(status.message());
}

TEST(TorchCuda, WhereLibTorchHasNoCudaNothingIsLoaded) {
  const auto cuda = TorchCuda::Open();
  EXPECT_TRUE(absl::IsUnavailable(cuda.status()));
  EXPECT_EQ(MessageOf(cuda.status()), "LibTorch has no CUDA in this process");
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  for (const char* name : {"terrace_torch_cuda-", "libc10_cuda"}) {
    EXPECT_EQ(text.find(name), std::string::npos) << name;
  }
  EXPECT_NE(text.find("/libc10.so"), std::string::npos);
}

TEST(TorchCuda, AModuleThatIsNotThereIsUnavailable) {
  const auto calls = LoadTorchCuda("/nowhere/module.so");
  EXPECT_TRUE(absl::IsUnavailable(calls.status()));
  EXPECT_THAT(
      MessageOf(calls.status()),
      StartsWith("no module for LibTorch's CUDA: /nowhere/module.so: "));
  EXPECT_EQ(MessageOf(LoadTorchCuda("libm.so.6").status()),
            "no module for LibTorch's CUDA: libm.so.6 has no "
            "terrace_torch_cuda_calls");
}

TEST(TorchCuda, AModuleOfAnotherVersionIsRefused) {
  const auto other = LoadTorchCuda(TERRACE_OTHER_MODULE);
  EXPECT_TRUE(absl::IsUnavailable(other.status()));
  EXPECT_THAT(MessageOf(other.status()),
              HasSubstr("it is of version 99, not 1"));
  const auto runtime = LoadTorchCuda(TERRACE_OTHER_RUNTIME);
  EXPECT_TRUE(absl::IsUnavailable(runtime.status()));
  EXPECT_THAT(MessageOf(runtime.status()),
              HasSubstr("its calls of CUDA are of version 98, not 1"));
}

TEST(TorchCuda, WhatTheModuleSaysIsPassedOn) {
  script = {.is_capturing = 1};
  const TorchCuda cuda(kCalls);
  EXPECT_TRUE(*cuda.IsCapturing(1, 7));
  script.is_capturing = 0;
  EXPECT_FALSE(*cuda.IsCapturing(1, 7));
  EXPECT_EQ(cuda.MemoryOf(0)->free_bytes, 3);
  EXPECT_EQ(cuda.MemoryOf(0)->total_bytes, 8);
  EXPECT_EQ(script.forgotten, 0);
}

TEST(TorchCuda, ACallThatFailsHasItsNameAndDeviceAndLeavesNoError) {
  script = {.code = kNoDevice};
  const TorchCuda cuda(kCalls);
  std::byte byte{};
  for (const absl::Status& status :
       {cuda.MemoryOf(3).status(), cuda.IsCapturing(3, 0).status(),
        cuda.Record(3, 0).status(), cuda.RegisterHost(3, {&byte, 1}),
        cuda.UnregisterHost(3, &byte)}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(MessageOf(status), StartsWith("cuda:3: cuda"));
    EXPECT_THAT(MessageOf(status),
                HasSubstr(": cudaErrorNoDevice (100): as scripted"));
  }
  EXPECT_EQ(script.forgotten, 5);
  script.code = kNoMemory;
  EXPECT_TRUE(absl::IsResourceExhausted(cuda.RegisterHost(3, {&byte, 1})));
}

TEST(TorchCuda, AnEventIsDestroyedOnce) {
  script = {};
  const TorchCuda cuda(kCalls);
  {
    auto event = cuda.Record(0, 0);
    ASSERT_TRUE(event.ok());
    TorchCuda::SleepingEvent moved = *std::move(event);
    EXPECT_TRUE(moved.Wait().ok());
    EXPECT_EQ(script.events, 1);
    script.code = kNoDevice;
    EXPECT_TRUE(absl::IsUnavailable(moved.Wait()));
  }
  EXPECT_EQ(script.events, 0);
}

TEST(TorchCuda, AnEventThatIsNotRecordedIsDestroyed) {
  script = {.record_code = kNoDevice};
  const TorchCuda cuda(kCalls);
  const auto event = cuda.Record(0, 0);
  EXPECT_THAT(MessageOf(event.status()), HasSubstr("cudaEventRecord"));
  EXPECT_EQ(script.events, 0);
}

}  // namespace
}  // namespace terrace
