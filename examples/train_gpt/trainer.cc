#include "examples/train_gpt/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "examples/train_gpt/interrupt.h"

namespace train_gpt {
namespace {

using SteadyClock = std::chrono::steady_clock;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// Adds the time from its making to its end to a sum.
class Timer {
 public:
  explicit Timer(double* sum) : sum_(sum), start_(SteadyClock::now()) {}
  ~Timer() { *sum_ += SecondsSince(start_); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  double* sum_;
  SteadyClock::time_point start_;
};

// One micro-batch: its gradients are added to those in place.
absl::Status AddGradients(const Flags& flags, const Corpus& corpus,
                          const Gpt& model, int64_t micro_batch,
                          StepRecord* record) {
  std::vector<int64_t> tokens;
  {
    Timer timer(&record->text_seconds);
    const absl::Status status =
        ReadBatch(corpus, flags.seed, record->step, micro_batch, flags.batch,
                  flags.seq, &tokens);
    if (!status.ok()) return status;
  }
  Timer timer(&record->model_seconds);
  const at::Tensor input = at::empty({flags.batch, flags.seq + 1}, at::kLong);
  std::memcpy(input.mutable_data_ptr(), tokens.data(),
              tokens.size() * sizeof(int64_t));
  at::Tensor loss = model.Loss(input);
  const double value = loss.item<double>();
  if (!std::isfinite(value)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the loss of step ", record->step, " is ", value,
                     "; a smaller --learning-rate may help"));
  }
  record->loss += value / static_cast<double>(flags.accumulate);
  if (flags.accumulate > 1) loss = loss / flags.accumulate;
  if (record->loss_scale != 1) loss = loss * record->loss_scale;
  loss.backward();
  return absl::OkStatus();
}

absl::Status AtStep(int64_t step, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("step ", step, ": ", status.message()));
}

}  // namespace

absl::Status Train(const Flags& flags, const Corpus& corpus, Gpt& model,
                   ModelOptimizer& optimizer, const StepObserver& observer,
                   Progress& progress) {
  for (int64_t step = progress.completed + 1; step <= flags.steps; ++step) {
    const auto start = SteadyClock::now();
    StepRecord record;
    record.step = step;
    record.loss_scale = progress.loss_scale.value();
    for (int64_t micro = 0; micro < flags.accumulate; ++micro) {
      absl::Status status = CheckNotInterrupted();
      if (status.ok()) {
        status = AddGradients(flags, corpus, model, micro, &record);
      }
      if (!status.ok()) return status;
    }
    {
      Timer timer(&record.optimizer_seconds);
      const absl::StatusOr<double> norm = optimizer.Step(record.loss_scale);
      if (!norm.ok()) return norm.status();
      record.gradient_norm = *norm;
      record.skipped = flags.skip_nonfinite && !std::isfinite(*norm);
      const absl::Status scaled = progress.loss_scale.Update(record.skipped);
      if (!scaled.ok()) return AtStep(step, scaled);
    }
    {
      Timer timer(&record.model_seconds);
      model.ForgetGradients();
    }
    record.seconds = SecondsSince(start);
    progress.completed = step;
    const absl::Status observed = observer(record);
    if (!observed.ok()) return observed;
  }
  return absl::OkStatus();
}

absl::Status Train(const Flags& flags, const Corpus& corpus, Gpt& model,
                   ModelOptimizer& optimizer, const StepObserver& observer) {
  Progress progress(flags);
  return Train(flags, corpus, model, optimizer, observer, progress);
}

}  // namespace train_gpt
