// A step that fails half-way and is called again, with parameters that are
// used in place and parameters that are copied for the step.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "tests/libtorch/torch_fixture.h"
#include "tests/support/map_runtime.h"

namespace terrace {
namespace {

// The second is a column of a matrix.
std::vector<at::Tensor> OddParameters(at::ScalarType dtype) {
  at::manual_seed(3);
  std::vector<at::Tensor> parameters;
  parameters.push_back(at::randn({20'011}).to(dtype));
  parameters.push_back(at::randn({9'001, 3}).to(dtype).select(1, 1));
  parameters.push_back(at::randn({101, 97}).to(dtype).t());
  for (at::Tensor& parameter : parameters) {
    parameter = parameter.detach().set_requires_grad(true);
  }
  return parameters;
}

std::unique_ptr<OffloadedAdamW> MakeThatMayFail(
    Runtime& runtime, const std::vector<at::Tensor>& parameters) {
  auto made = OffloadedAdamW::Create(runtime, parameters, SmallChunks());
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

TEST(TorchFailure, TheSameStepAgainGivesTheBitsOfTheUndisturbed) {
  const auto executor = *MakePoolExecutor(2, {});
  int64_t failures = 0;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (int64_t call = 0;; call += 3) {
      SCOPED_TRACE(absl::StrCat(toString(dtype), ", call ", call));
      MapRuntime runtime({.budget_bytes = 512 << 10, .seed = 7}, SystemClock(),
                         *executor);
      MapRuntime calm({.budget_bytes = 512 << 10}, SystemClock(), *executor);
      const std::vector<at::Tensor> parameters = OddParameters(dtype);
      const std::vector<at::Tensor> expected = OddParameters(dtype);
      auto optimizer = MakeThatMayFail(runtime, parameters);
      auto undisturbed = MakeThatMayFail(calm, expected);
      bool failed = false;
      for (int step = 1; step <= 3; ++step) {
        DrawGradients(step, parameters);
        DrawGradients(step, expected);
        undisturbed->step();
        const int64_t from = runtime.calls();
        runtime.set_fault([&](const MapRuntime::Call& now) {
          return step == 2 && now.index - from == call
                     ? absl::UnknownError("read failed: path 0: EIO")
                     : absl::OkStatus();
        });
        absl::Status status = optimizer->TryStep();
        runtime.set_fault(nullptr);
        if (!status.ok()) {
          failed = true;
          ++failures;
          EXPECT_THAT(std::string(status.message()), testing::HasSubstr("EIO"));
          // Another rate is another step.
          optimizer->param_groups()[0].options().set_lr(0.5);
          EXPECT_TRUE(absl::IsFailedPrecondition(optimizer->TryStep()));
          optimizer->param_groups()[0].options().set_lr(1e-3);
          status = optimizer->TryStep();
        }
        ASSERT_TRUE(status.ok()) << status;
        for (size_t i = 0; i < parameters.size(); ++i) {
          EXPECT_TRUE(SameBits(parameters[i], expected[i])) << i;
        }
      }
      if (!failed || HasFailure()) break;
    }
  }
  EXPECT_GE(failures, 2 * 6);
}

TEST(TorchFailure, StepThrowsTheStatusesText) {
  const auto executor = *MakePoolExecutor(1, {});
  MapRuntime runtime({.budget_bytes = 512 << 10}, SystemClock(), *executor);
  const std::vector<at::Tensor> parameters = OddParameters(at::kFloat);
  auto optimizer = MakeThatMayFail(runtime, parameters);
  DrawGradients(1, parameters);
  runtime.set_fault([](const MapRuntime::Call& call) {
    return call.kind == MapRuntime::CallKind::kCommit
               ? absl::UnknownError("write failed: path 1: ENOSPC")
               : absl::OkStatus();
  });
  try {
    optimizer->step();
    FAIL() << "no exception";
  } catch (const c10::Error& error) {
    EXPECT_THAT(std::string(error.what()), testing::HasSubstr("ENOSPC"));
  }
  EXPECT_TRUE(optimizer->offloaded().incomplete());
  runtime.set_fault(nullptr);
  optimizer->step();
  EXPECT_FALSE(optimizer->offloaded().incomplete());
}

}  // namespace
}  // namespace terrace
