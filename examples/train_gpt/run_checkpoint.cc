#include "examples/train_gpt/run_checkpoint.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "terrace/checkpoint.h"

namespace train_gpt {
namespace {

using terrace::Checkpoint;
using terrace::CheckpointTensor;
using terrace::CheckpointValue;
using terrace::CheckpointValues;

constexpr char kProgramKey[] = "program";
constexpr char kProgram[] = "train_gpt";
constexpr char kStepKey[] = "step";
// Of LossScale::State.
constexpr char kScaleKey[] = "loss scale";
constexpr char kHysteresisKey[] = "loss scale: hysteresis left";
constexpr char kGoodStepsKey[] = "loss scale: good steps";
constexpr absl::Duration kTimeout = absl::Hours(1);

// A number of the run that the checkpoint keeps.
struct RunNumber {
  const char* name;  // as the user would say it
  CheckpointValue value;
  bool of_the_model;  // no other will do
};

// Each of its numbers but the rate itself; for comparing.
std::string ScheduleText(const terrace::LearningRateSchedule& schedule) {
  const std::vector<double> numbers = {
      static_cast<double>(schedule.kind),
      schedule.least,
      schedule.most,
      schedule.least_ratio,
      schedule.cosine_ratio,
      static_cast<double>(schedule.logarithmic),
      static_cast<double>(schedule.warmup_steps),
      static_cast<double>(schedule.total_steps),
      static_cast<double>(schedule.step_size),
      schedule.rate,
      static_cast<double>(schedule.staircase),
      static_cast<double>(schedule.first_steps),
      static_cast<double>(schedule.second_steps),
      static_cast<double>(schedule.first_stairs),
      static_cast<double>(schedule.second_stairs),
      static_cast<double>(schedule.decay_steps)};
  return absl::StrJoin(numbers, " ");
}

// For comparing.
std::string ScaleText(const terrace::LossScaleSettings& scale) {
  const std::vector<double> numbers = {
      static_cast<double>(scale.dynamic),
      scale.initial,
      static_cast<double>(scale.window),
      static_cast<double>(scale.hysteresis),
      static_cast<double>(scale.consecutive_hysteresis),
      scale.least};
  return absl::StrJoin(numbers, " ");
}

std::vector<RunNumber> RunNumbers(const Flags& flags, const Corpus& corpus) {
  const std::string dtype = terrace::DTypeName(DTypeOf(flags.dtype));
  std::vector<RunNumber> numbers = {
      {"--layers", flags.shape.layers, true},
      {"--heads", flags.shape.heads, true},
      {"--width", flags.shape.width, true},
      {"--vocab", flags.shape.vocab, true},
      {"--context", flags.shape.context, true},
      {"--dtype", dtype, true},
      {"--seed", static_cast<int64_t>(flags.seed), false},
      {"--batch", flags.batch, false},
      {"--seq", flags.seq, false},
      {"--accumulate", flags.accumulate, false},
      {"--learning-rate", flags.learning_rate, false},
      {"--clip", flags.clip, false},
      {"beta1", flags.adam.beta1, false},
      {"beta2", flags.adam.beta2, false},
      {"epsilon", flags.adam.epsilon, false},
      {"weight decay", flags.adam.weight_decay, false},
      {"the schedule", ScheduleText(flags.schedule), false},
      {"tokens of text", corpus.size(), false}};
  if (flags.loss_scale) {
    numbers.push_back({"fp16", ScaleText(*flags.loss_scale), false});
  }
  if (!flags.adam.decoupled_decay) {
    numbers.push_back({"adam_w_mode", int64_t{0}, false});
  }
  if (!flags.adam.bias_correction) {
    numbers.push_back({"bias_correction", int64_t{0}, false});
  }
  if (flags.schedule.cycles_momentum) {
    numbers.push_back({"cycle_momentum", int64_t{1}, false});
  }
  return numbers;
}

std::string Text(const CheckpointValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return absl::StrCat(*number);
  }
  if (const auto* number = std::get_if<double>(&value)) {
    return absl::StrCat(*number);
  }
  const auto* text = std::get_if<std::string>(&value);
  return text != nullptr ? *text : "bytes";
}

// Steps behind it.
absl::StatusOr<int64_t> StepOf(const Flags& flags,
                               const Checkpoint& checkpoint) {
  const CheckpointValues& values = checkpoint.values();
  const auto program = values.find(kProgramKey);
  const auto step = values.find(kStepKey);
  if (program == values.end() || Text(program->second) != kProgram ||
      step == values.end() || !std::holds_alternative<int64_t>(step->second)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--resume ", flags.resume, ": the checkpoint is of another program"));
  }
  return std::get<int64_t>(step->second);
}

// A fixed scale is the flags'.
absl::Status ResumeScale(const Flags& flags, const Checkpoint& checkpoint,
                         LossScale* scale) {
  if (!flags.loss_scale || !flags.loss_scale->dynamic) return absl::OkStatus();
  const CheckpointValues& values = checkpoint.values();
  const auto value = values.find(kScaleKey);
  const auto hysteresis = values.find(kHysteresisKey);
  const auto good_steps = values.find(kGoodStepsKey);
  for (const auto& found : {value, hysteresis, good_steps}) {
    if (found == values.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--resume ", flags.resume, ": the checkpoint has no loss scale"));
    }
  }
  const auto* const number = std::get_if<double>(&value->second);
  const auto* const left = std::get_if<int64_t>(&hysteresis->second);
  const auto* const good = std::get_if<int64_t>(&good_steps->second);
  if (number == nullptr || left == nullptr || good == nullptr ||
      !(*number > 0) || *left < 1 || *good < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--resume ", flags.resume,
        ": the checkpoint's loss scale is none: ", Text(value->second), ", ",
        Text(hysteresis->second), ", ", Text(good_steps->second)));
  }
  scale->set_state({*number, *left, *good});
  return absl::OkStatus();
}

absl::Status CheckResume(const Flags& flags, const Corpus& corpus) {
  const auto checkpoint = Checkpoint::Open(flags.resume);
  if (!checkpoint.ok()) {
    return absl::Status(
        checkpoint.status().code(),
        absl::StrCat("--resume ", checkpoint.status().message()));
  }
  const absl::StatusOr<int64_t> step = StepOf(flags, **checkpoint);
  if (!step.ok()) return step.status();
  const CheckpointValues& values = (*checkpoint)->values();
  for (const RunNumber& number : RunNumbers(flags, corpus)) {
    const auto saved = values.find(number.name);
    if (saved != values.end() && saved->second == number.value) continue;
    const std::string then =
        saved == values.end() ? "nothing" : Text(saved->second);
    if (number.of_the_model) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--resume ", flags.resume, ": the checkpoint is of another model: ",
          number.name, " ", then, ", not ", Text(number.value)));
    }
    absl::PrintF(
        "--resume: %s is %s, was %s: losses will differ from those "
        "of the run that was saved\n",
        number.name, Text(number.value), then);
  }
  if (*step >= flags.steps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--resume ", flags.resume, ": the checkpoint is of step ", *step,
        "; --steps ", flags.steps, " leaves nothing to train"));
  }
  return absl::OkStatus();
}

// Hours of training are not overwritten by mistake.
absl::Status CheckSave(const Flags& flags) {
  std::error_code error;
  if (Checkpoint::Open(flags.save).ok() &&
      (flags.resume.empty() ||
       !std::filesystem::equivalent(flags.save, flags.resume, error))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--save ", flags.save,
        ": has a checkpoint already; --resume it, remove it or save "
        "elsewhere"));
  }
  const absl::Status status = terrace::PrepareCheckpointDirectory(flags.save);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("--save ", status.message()));
}

std::vector<CheckpointTensor> TensorsOf(const Gpt& model, Dtype dtype) {
  std::vector<CheckpointTensor> tensors;
  for (const Gpt::Parameter& parameter : model.parameters()) {
    tensors.push_back(
        {.name = parameter.name,
         .dtype = DTypeOf(dtype),
         .shape = parameter.tensor.sizes().vec(),
         .data = parameter.tensor.data_ptr(),
         .optimizer_parameter = static_cast<int>(tensors.size())});
  }
  return tensors;
}

}  // namespace

absl::Status PrepareCheckpoints(const Flags& flags, const Corpus& corpus) {
  absl::Status status;
  if (!flags.resume.empty()) status = CheckResume(flags, corpus);
  if (status.ok() && !flags.save.empty()) status = CheckSave(flags);
  return status;
}

absl::StatusOr<Progress> Resume(const Flags& flags, Gpt& model,
                                terrace::OffloadedOptimizer& optimizer) {
  Progress progress(flags);
  if (flags.resume.empty()) return progress;
  const auto checkpoint = Checkpoint::Open(flags.resume);
  if (!checkpoint.ok()) return checkpoint.status();
  const absl::StatusOr<int64_t> step = StepOf(flags, **checkpoint);
  if (!step.ok()) return step.status();
  absl::Status status = ResumeScale(flags, **checkpoint, &progress.loss_scale);
  if (status.ok()) {
    status = (*checkpoint)
                 ->Load(TensorsOf(model, flags.dtype), &optimizer,
                        absl::Now() + kTimeout);
  }
  if (!status.ok()) return status;
  progress.completed = *step;
  absl::PrintF("resumed after step %d from %s\n", *step, flags.resume);
  std::fflush(stdout);
  return progress;
}

absl::Status Save(const Flags& flags, const Corpus& corpus, Gpt& model,
                  terrace::OffloadedOptimizer& optimizer,
                  const Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  CheckpointValues values = {{kProgramKey, std::string(kProgram)},
                             {kStepKey, progress.completed}};
  for (RunNumber& number : RunNumbers(flags, corpus)) {
    values[number.name] = std::move(number.value);
  }
  if (flags.loss_scale) {
    const LossScale::State& scale = progress.loss_scale.state();
    values[kScaleKey] = scale.value;
    values[kHysteresisKey] = scale.hysteresis_left;
    values[kGoodStepsKey] = scale.good_steps;
  }
  const std::vector<CheckpointTensor> tensors = TensorsOf(model, flags.dtype);
  const auto saved = terrace::SaveCheckpoint(flags.save,
                                             {.parameters = tensors,
                                              .optimizer = &optimizer,
                                              .values = std::move(values)},
                                             absl::Now() + kTimeout);
  if (!saved.ok()) {
    return absl::Status(saved.status().code(),
                        absl::StrCat("--save ", saved.status().message()));
  }
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  absl::PrintF("saved step %d: %d bytes in %.3f s\n", progress.completed,
               *saved, seconds.count());
  std::fflush(stdout);
  return absl::OkStatus();
}

bool SaveIsDue(const Flags& flags, int64_t step) {
  if (flags.save.empty()) return false;
  return step == flags.steps ||
         (flags.save_every > 0 && step % flags.save_every == 0);
}

}  // namespace train_gpt
