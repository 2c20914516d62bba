// A model of one parameter and its optimizer over a runtime, whose steps repeat
// the update pass as often as a benchmark says.
//
// One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/step_compute.h"
#include "terrace/optimizer.h"
#include "terrace/runtime.h"

namespace terrace::bench {

struct StepSetting {
  int64_t parameters = 0;  // fp32
  int64_t budget_bytes = 0;
  int threads = 0;
};

class StepWorkbench {
 public:
  // `options`: where the state is; the budget and the threads are the
  // setting's.
  static absl::StatusOr<std::unique_ptr<StepWorkbench>> Make(
      const StepSetting& setting, Options options);

  // Mean seconds of consecutive steps.
  absl::StatusOr<double> Steps(int repeats, int steps);
  // Seconds of a step's compute alone, over resident chunks.
  double Compute(int repeats) { return compute_->Run(repeats); }
  Stats stats() const { return runtime_->GetStats(); }

 private:
  explicit StepWorkbench(int64_t parameters)
      : parameters_(static_cast<size_t>(parameters), 1.0f),
        gradients_(static_cast<size_t>(parameters), 1e-3f) {}

  std::vector<float> parameters_, gradients_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<RepeatedUpdate> repeated_, whole_chunks_;
  std::unique_ptr<RepeatingRuntime> repeating_;
  std::unique_ptr<ResidentCompute> compute_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;  // first to go
};

// What a row needs before it can be set up: bytes of a step in the busier
// direction, and compute without repetition and per repetition.
struct StepCalibration {
  double bytes = 0;
  double compute = 0;
  double repetition = 0;

  // As many repetitions as bring the rate at which (bytes / rate) / compute is
  // `target` down to `highest_rate`.
  int RepeatsFor(double target, double highest_rate) const;
  double ComputeOf(int repeats) const { return compute + repeats * repetition; }
};

// `bench` is on a device that is not paced.
absl::StatusOr<StepCalibration> Calibrate(StepWorkbench& bench);

}  // namespace terrace::bench
