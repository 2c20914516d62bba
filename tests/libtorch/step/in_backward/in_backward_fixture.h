// Optimizers that step in backward, beside the same ones that step after it.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/late_fixture.h"

namespace terrace {

// One whose last of so many passes makes the step; 0: it steps after them.
inline std::unique_ptr<Trained> TrainedInBackward(
    int passes, at::ScalarType dtype = at::kFloat) {
  auto trained = std::make_unique<Trained>(/*overlap=*/false, dtype);
  const absl::Status set = trained->optimizer().SetStepInBackward(passes);
  EXPECT_TRUE(set.ok()) << set;
  return trained;
}

// Gives each its gradient, N(0,1) and the same for the same number.
inline at::Tensor LossOf(const std::vector<at::Tensor>& parameters,
                         int64_t number) {
  at::manual_seed(static_cast<uint64_t>(5000 + number));
  at::Tensor loss = at::zeros({});
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor factor =
        at::randn(parameter.sizes(), at::kFloat).to(parameter.scalar_type());
    if (!parameter.requires_grad()) continue;
    loss = loss + (parameter * factor).sum().to(at::kFloat);
  }
  return loss;
}

// What a backward pass over these throws; "": nothing.
inline std::string Pass(const std::vector<at::Tensor>& parameters,
                        int64_t number) {
  try {
    LossOf(parameters, number).backward();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

// So many passes, and the step.
inline void StepAfter(Trained& trained, int passes, int64_t step) {
  trained.optimizer().zero_grad();
  for (int pass = 0; pass < passes; ++pass) {
    ASSERT_EQ(Pass(trained.parameters(), 10 * step + pass), "");
  }
  const absl::Status status = trained.optimizer().TryStep();
  ASSERT_TRUE(status.ok()) << status;
}

inline bool HasGradients(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& each : parameters) {
    if (each.grad().defined()) return true;
  }
  return false;
}

inline void ExpectSame(Trained& ours, Trained& theirs) {
  ours.ExpectParametersOf(theirs);
  ours.ExpectStateOf(theirs);
  EXPECT_EQ(ours.optimizer().offloaded().step(),
            theirs.optimizer().offloaded().step());
}

}  // namespace terrace
