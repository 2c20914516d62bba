// How many steps an optimizer has completed, in all and by parameter, and how
// far each parameter's master was written by a load.
//
// One thread at a time. Parameters are those of the specs that callers give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "terrace/optimizer.h"

namespace terrace {

class StepCounts {
 public:
  int64_t step() const { return step_; }
  // Those with a gradient.
  absl::Span<const int64_t> by_parameter() const { return by_parameter_; }

  // More parameters, without a step.
  void Resize(size_t parameters);
  // As before the first step.
  void Clear();
  void Forget(int parameter);

  // InvalidArgument, naming the parameter: not one count from 0 to kMostSteps
  // for each.
  absl::Status Assign(absl::Span<const ParameterSpec> specs, int64_t step,
                      absl::Span<const int64_t> by_parameter);
  // A step of the parameters that have a gradient is complete.
  void CountStep(absl::Span<const ParameterSpec> specs,
                 absl::Span<const ParameterData> parameters);

  // Elements of the parameter's master from 0 on.
  int64_t& master_written(int parameter) {
    return masters_written_[static_cast<size_t>(parameter)];
  }
  // FailedPrecondition, naming the parameter: a load ended in the middle of its
  // master, which must not go unnoticed.
  absl::Status CheckMasters(absl::Span<const ParameterSpec> specs) const;

 private:
  int64_t step_ = 0;
  std::vector<int64_t> by_parameter_;
  std::vector<int64_t> masters_written_;
};

}  // namespace terrace
