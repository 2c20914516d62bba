// Updates over a device, memory and a disk, each call of the device's memory
// and of the disk failing in turn: either leg, either direction. Whatever
// happened, an error is typed, what is read is what was last published, and
// only what the device lost is lost. The reference is a list of patterns.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/contract/fixture.h"

namespace terrace {
namespace {

constexpr int kTensors = 7;

struct SweptFault {
  const char* name;
  bool of_device;
  absl::StatusCode code;  // of the device
  FaultKind kind;         // of the disk
};
constexpr SweptFault kFaults[] = {
    {"DeviceFails", true, absl::StatusCode::kUnavailable, FaultKind::kNone},
    {"DeviceLoses", true, absl::StatusCode::kDataLoss, FaultKind::kNone},
    {"DiskFails", false, absl::StatusCode::kOk, FaultKind::kError},
    {"DiskFlips", false, absl::StatusCode::kOk, FaultKind::kBitFlip},
    {"DiskIsLate", false, absl::StatusCode::kOk, FaultKind::kNever},
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
  void Aim(TestRuntime& runtime, int64_t call) {
    if (GetParam().of_device) {
      runtime.hbm().faults().Fail(call, absl::Status(GetParam().code, "fails"));
    } else {
      runtime.faults().FailCall(call + 1, {.kind = GetParam().kind});
    }
  }
  int64_t Calls(TestRuntime& runtime) {
    if (!GetParam().of_device) return runtime.faults().calls();
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
  TestRuntime runtime(TestWorld::kHbmVirtual, options);
  const std::vector<TensorId> tensors = runtime.RegisterMany(kTensors, kPage);
  auto above = runtime.OpenQueue(kPage, 1, TierKind::kHbm);
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
  runtime.faults().Clear();
  runtime.hbm().faults().Clear();
  EXPECT_TRUE(above->BeginStep(1).ok());  // what failed is tried again
  int lost = 0;
  for (int i = 0; i < kTensors; ++i) {
    Use(runtime, i % 2 == 0 ? *above : *below, tensors[static_cast<size_t>(i)],
        i, Access::kRead);
    lost += truths_[static_cast<size_t>(i)].lost ? 1 : 0;
  }
  EXPECT_LE(lost, 1);
  above->CommitStep({.step = 1}).IgnoreError();
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
