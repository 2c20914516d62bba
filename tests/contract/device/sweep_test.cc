// Updates over a device, memory and a disk, each call of the device's memory,
// of the streams that copy to and from it, and of the disk failing in turn:
// either leg, either direction. Whatever
// happened, an error is typed, what is read is what was last published, and
// only what the device lost is lost. The reference is a list of patterns.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/contract/contract_fixture.h"
#include "tests/support/device/fake_runtime_device.h"

namespace terrace {
namespace {

constexpr int kTensors = 7;

enum class Failing : uint8_t {
  kMemory,    // of the device: plain bytes that a Copy transport moves
  kToDevice,  // a copy in a stream of the device
  kToHost,
  kDisk,
};

enum class CopyFault : uint8_t { kNone, kAtOnce, kAtEnd, kNever };

struct SweptFault {
  const char* name;
  Failing failing;
  absl::StatusCode code = absl::StatusCode::kOk;  // of the device's memory
  FaultKind kind = FaultKind::kNone;              // of the disk
  CopyFault copy = CopyFault::kNone;              // of a stream
};
constexpr SweptFault kFaults[] = {
    {"DeviceFails", Failing::kMemory, absl::StatusCode::kUnavailable},
    {"DeviceLoses", Failing::kMemory, absl::StatusCode::kDataLoss},
    {.name = "UpIsRefused",
     .failing = Failing::kToDevice,
     .copy = CopyFault::kAtOnce},
    {.name = "UpFails",
     .failing = Failing::kToDevice,
     .copy = CopyFault::kAtEnd},
    {.name = "UpIsLate",
     .failing = Failing::kToDevice,
     .copy = CopyFault::kNever},
    {.name = "DownIsRefused",
     .failing = Failing::kToHost,
     .copy = CopyFault::kAtOnce},
    {.name = "DownFails",
     .failing = Failing::kToHost,
     .copy = CopyFault::kAtEnd},
    {.name = "DownIsLate",
     .failing = Failing::kToHost,
     .copy = CopyFault::kNever},
    {.name = "DiskFails", .failing = Failing::kDisk, .kind = FaultKind::kError},
    {.name = "DiskFlips",
     .failing = Failing::kDisk,
     .kind = FaultKind::kBitFlip},
    {.name = "DiskIsLate",
     .failing = Failing::kDisk,
     .kind = FaultKind::kNever},
};

class DeviceSweep : public testing::TestWithParam<SweptFault> {
 protected:
  static constexpr int64_t kPage = 4096;

  struct Truth {
    uint8_t seed = 0;
    bool lost = false;
  };

  bool may_lose() const {
    return GetParam().code == absl::StatusCode::kDataLoss;
  }
  static bool is_of_a_stream() { return GetParam().copy != CopyFault::kNone; }
  static DeviceCallKind CallKind() {
    return GetParam().failing == Failing::kToHost ? DeviceCallKind::kToHost
                                                  : DeviceCallKind::kToDevice;
  }
  DeviceScript& script() { return device_->fake().script(); }

  void Aim(TestRuntime& runtime, int64_t call) {
    if (is_of_a_stream()) {
      const absl::Status fails = absl::UnavailableError("fails");
      DeviceFault fault;
      if (GetParam().copy == CopyFault::kAtOnce) fault.at_once = fails;
      if (GetParam().copy == CopyFault::kAtEnd) fault.at_end = fails;
      fault.never = GetParam().copy == CopyFault::kNever;
      script().Fail(CallKind(), call, std::move(fault));
    } else if (GetParam().failing == Failing::kMemory) {
      runtime.hbm().faults().Fail(call, absl::Status(GetParam().code, "fails"));
    } else {
      runtime.faults().FailCall(call + 1, {.kind = GetParam().kind});
    }
  }
  void Mend(TestRuntime& runtime) {
    runtime.faults().Clear();
    if (is_of_a_stream()) {
      device_->fake().Release();
    } else {
      runtime.hbm().faults().Clear();
    }
  }
  int64_t Calls(TestRuntime& runtime) {
    if (is_of_a_stream()) return script().calls(CallKind());
    if (GetParam().failing == Failing::kDisk) return runtime.faults().calls();
    return static_cast<int64_t>(runtime.hbm().faults().calls().size());
  }
  void Explain(const absl::Status& status, int tensor) {
    if (absl::IsDataLoss(status)) {
      // A flipped bit of what was written is on the disk for good.
      EXPECT_TRUE(may_lose() || GetParam().kind == FaultKind::kBitFlip)
          << status;
      truths_[static_cast<size_t>(tensor)].lost = true;
      return;
    }
    EXPECT_TRUE(absl::IsUnavailable(status) ||
                absl::IsResourceExhausted(status) ||
                absl::IsDeadlineExceeded(status))
        << status;
  }
  void Use(TestRuntime& runtime, RequestQueue& queue, TensorId id, int tensor,
           Access access) {
    Truth& truth = truths_[static_cast<size_t>(tensor)];
    absl::StatusOr<Pin> pin = runtime.Take(queue, id, access);
    if (!pin.ok()) return Explain(pin.status(), tensor);
    EXPECT_FALSE(truth.lost);
    EXPECT_TRUE(runtime.Has(*pin, truth.seed)) << "tensor " << tensor;
    if (access == Access::kRead) return;
    truth.seed = static_cast<uint8_t>(truth.seed + 50);
    runtime.Write(*pin, truth.seed);
  }
  // False: there is no such call.
  bool Run(int64_t call);

  std::vector<Truth> truths_;
  // With streams of its own, where one of those fails.
  std::shared_ptr<VirtualRuntimeDevice> device_;
};

INSTANTIATE_TEST_SUITE_P(Faults, DeviceSweep, testing::ValuesIn(kFaults),
                         [](const auto& chosen) {
                           return std::string(chosen.param.name);
                         });

bool DeviceSweep::Run(int64_t call) {
  TestRuntimeOptions options;
  options.hbm_bytes = 3 * 2 * kPage;
  options.budget_bytes = 6 * 2 * kPage;
  options.prefetch = false;
  options.io_timeout = absl::Seconds(1);
  if (is_of_a_stream()) device_ = std::make_shared<VirtualRuntimeDevice>();
  options.device = device_;
  TestRuntime runtime(TestWorld::kHbmVirtual, options);
  const std::vector<TensorId> tensors = runtime.RegisterMany(kTensors, kPage);
  auto above = runtime.OpenQueue(kPage, 1, "hbm");
  auto below = runtime.OpenQueue(kPage, 1);
  truths_.assign(kTensors, {});
  for (int i = 0; i < kTensors; ++i) {
    truths_[static_cast<size_t>(i)].seed = static_cast<uint8_t>(i);
    runtime.Fill(*above, tensors[static_cast<size_t>(i)],
                 static_cast<uint8_t>(i));
  }
  const int64_t before = Calls(runtime);
  Aim(runtime, call);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kTensors; ++i) {
      const bool reads = i % 3 == 2;
      Use(runtime, i % 3 == 1 ? *below : *above,
          tensors[static_cast<size_t>(i)], i,
          reads ? Access::kRead : Access::kUpdate);
    }
  }
  const int64_t calls = Calls(runtime) - before;
  Mend(runtime);
  EXPECT_TRUE(above->BeginStep(1).ok());  // what failed is tried again
  int lost = 0;
  for (int i = 0; i < kTensors; ++i) {
    Use(runtime, i % 2 == 0 ? *above : *below, tensors[static_cast<size_t>(i)],
        i, Access::kRead);
    lost += truths_[static_cast<size_t>(i)].lost ? 1 : 0;
  }
  EXPECT_LE(lost, 1);
  above->CommitStep({.step = 1}).IgnoreError();
  if (device_ != nullptr) {
    EXPECT_THAT(device_->violations(), testing::IsEmpty());
  }
  return call < calls;
}

TEST_P(DeviceSweep, EachCallOfUpdatesInTurn) {
  int64_t call = 0;
  for (bool there = true; there && !HasFailure(); ++call) {
    SCOPED_TRACE(absl::StrCat("call ", call));
    there = Run(call);
  }
  EXPECT_GT(call, 3);
}

}  // namespace
}  // namespace terrace
