// Updates over far and persistent memory, each call of each medium failing in
// turn. Whatever happened: an error is typed, what is read is what was last
// published, and only bytes that a medium lost are lost. The reference is a
// list of patterns.
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {
namespace {

constexpr int64_t kPage = 4096;
constexpr int kTensors = 6;

struct MediumFault {
  const char* name;
  absl::StatusCode code;
};
constexpr MediumFault kMediumFaults[] = {
    {"Unavailable", absl::StatusCode::kUnavailable},
    {"Lost", absl::StatusCode::kDataLoss}};

class MappedSweep
    : public testing::TestWithParam<std::tuple<TestWorld, MediumFault>> {
 protected:
  void SetUp() override {
    const absl::Status supported = TestRuntime::Supports(world());
    if (!supported.ok()) GTEST_SKIP() << supported;
  }
  static TestWorld world() { return std::get<0>(GetParam()); }
  static const MediumFault& fault() { return std::get<1>(GetParam()); }

  // Whether there are such a medium and such a call of it.
  struct Found {
    bool medium = false;
    bool call = false;
  };
  Found Run(int medium, int64_t call);
  // Reads and rewrites all, once.
  void Update(TestRuntime& runtime, RequestQueue& queue,
              const std::vector<TensorId>& tensors);
  void Explain(const absl::Status& status, int tensor);

  struct Truth {
    uint8_t seed = 0;
    bool lost = false;
  };
  std::vector<Truth> truths_;
};

INSTANTIATE_TEST_SUITE_P(
    Faults, MappedSweep,
    testing::Combine(testing::Values(TestWorld::kFarVirtual, TestWorld::kFar,
                                     TestWorld::kPmemVirtual, TestWorld::kPmem,
                                     TestWorld::kThreeVirtual,
                                     TestWorld::kFourVirtual),
                     testing::ValuesIn(kMediumFaults)),
    [](const auto& chosen) {
      return absl::StrCat(std::get<1>(chosen.param).name,
                          TestWorldName(std::get<0>(chosen.param)));
    });

void MappedSweep::Explain(const absl::Status& status, int tensor) {
  if (absl::IsDataLoss(status)) {
    EXPECT_EQ(fault().code, absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr(absl::StrCat("'tensor ", tensor, "'")));
    truths_[static_cast<size_t>(tensor)].lost = true;
    return;
  }
  // A write that failed keeps its room until it is tried again.
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsResourceExhausted(status))
      << status;
}

void MappedSweep::Update(TestRuntime& runtime, RequestQueue& queue,
                         const std::vector<TensorId>& tensors) {
  for (int i = 0; i < kTensors; ++i) {
    Truth& truth = truths_[static_cast<size_t>(i)];
    absl::StatusOr<Pin> pin =
        runtime.Take(queue, tensors[static_cast<size_t>(i)], Access::kUpdate);
    if (!pin.ok()) {
      Explain(pin.status(), i);
      continue;
    }
    EXPECT_FALSE(truth.lost);
    EXPECT_TRUE(HasPattern(pin->data(), truth.seed)) << "tensor " << i;
    truth.seed = static_cast<uint8_t>(truth.seed + 50);
    WritePattern(pin->data(), truth.seed);
  }
}

MappedSweep::Found MappedSweep::Run(int which, int64_t call) {
  // Room for three tensors, two of them the window's.
  TestRuntimeOptions options;
  options.budget_bytes = 3 * 2 * kPage;
  options.prefetch = false;
  TestRuntime runtime(world(), options);
  if (which >= runtime.mediums()) return {};
  const std::vector<TensorId> tensors = runtime.RegisterMany(kTensors, kPage);
  auto queue = runtime.OpenQueue(kPage, 2);
  truths_.assign(kTensors, {});
  for (int i = 0; i < kTensors; ++i) {
    truths_[static_cast<size_t>(i)].seed = static_cast<uint8_t>(i);
    runtime.Fill(*queue, tensors[static_cast<size_t>(i)],
                 static_cast<uint8_t>(i));
  }
  FaultMedium& medium = runtime.medium_faults(which);
  const auto before = static_cast<int64_t>(medium.calls().size());
  medium.Fail(call, absl::Status(fault().code, "the medium fails"));
  for (int round = 0; round < 2; ++round) Update(runtime, *queue, tensors);
  const auto calls = static_cast<int64_t>(medium.calls().size()) - before;
  medium.Clear();
  EXPECT_TRUE(queue->BeginStep(1).ok());  // what failed is tried again
  int lost = 0;
  for (int i = 0; i < kTensors; ++i) {
    const Truth& truth = truths_[static_cast<size_t>(i)];
    absl::StatusOr<Pin> pin =
        runtime.Take(*queue, tensors[static_cast<size_t>(i)], Access::kRead);
    if (pin.ok()) {
      EXPECT_FALSE(truth.lost);
      EXPECT_TRUE(HasPattern(pin->data(), truth.seed)) << "tensor " << i;
    } else {
      EXPECT_TRUE(absl::IsDataLoss(pin.status())) << pin.status();
      Explain(pin.status(), i);
    }
    lost += truth.lost ? 1 : 0;
  }
  EXPECT_LE(lost, 1);
  queue->CommitStep({.step = 1}).IgnoreError();
  return {.medium = true, .call = call < calls};
}

TEST_P(MappedSweep, EachCallOfUpdatesInTurn) {
  Found found = {.medium = true};
  int medium = 0;
  for (; found.medium && !HasFailure(); ++medium) {
    int64_t call = 0;
    found.call = true;
    for (; found.call && !HasFailure(); ++call) {
      SCOPED_TRACE(absl::StrCat("medium ", medium, ", call ", call));
      found = Run(medium, call);
    }
    EXPECT_TRUE(!found.medium || call > 3) << call << " of " << medium;
  }
  EXPECT_GT(medium, 1);
}

}  // namespace
}  // namespace terrace
