#include "examples/train_gpt/run.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/train_gpt/corpus.h"
#include "examples/train_gpt/disk_room.h"
#include "examples/train_gpt/gpt.h"
#include "examples/train_gpt/model_optimizer.h"
#include "examples/train_gpt/offloaded_optimizer.h"
#include "examples/train_gpt/parameter_place.h"
#include "examples/train_gpt/peak_memory.h"
#include "examples/train_gpt/report.h"
#include "examples/train_gpt/requirements.h"
#include "examples/train_gpt/run_checkpoint.h"
#include "examples/train_gpt/speed_probe.h"
#include "examples/train_gpt/state_path.h"
#include "examples/train_gpt/state_plan.h"
#include "examples/train_gpt/trainer.h"
#include "examples/train_gpt/verify.h"
#include "terrace/machine.h"

namespace train_gpt {
namespace {

int AllowedCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return CPU_COUNT(&cores);
}

// One run, in the order of its methods.
class Training {
 public:
  Training(const Flags& flags, const Corpus& corpus)
      : flags_(flags), corpus_(corpus) {}

  // What it will take, printed, and taken if it is there.
  absl::Status Prepare();
  absl::Status Run();
  // Measures, verifies, prints, writes.
  absl::Status Conclude();

 private:
  absl::Status RunSteps(Gpt& model, ModelOptimizer& optimizer);
  // With checkpoints.
  absl::Status ResumeAndTrain(Gpt& model, OffloadedModelOptimizer& optimizer);
  absl::Status RunOffloaded(Gpt& model);
  void Observe(const StepRecord& record);  // a step has ended
  absl::Status KeepPeak();                 // before verification adds to it

  const Flags& flags_;
  const Corpus& corpus_;
  std::optional<OffloadPlan> plan_;
  std::unique_ptr<terrace::Runtime> runtime_;   // of a plan, until it is used
  std::unique_ptr<ParameterPlace> parameters_;  // where they are on disks
  std::optional<FinalParameters> final_parameters_;
  RunReport report_;
};

absl::Status Training::Prepare() {
  const int threads =
      flags_.threads > 0 ? static_cast<int>(flags_.threads) : AllowedCores();
  at::set_num_threads(threads);
  report_.parameters = ParameterCount(flags_.shape);
  report_.isa = terrace::InstructionSetName();
  report_.dtype = terrace::DTypeName(DTypeOf(flags_.dtype));
  report_.tokens_per_step = flags_.batch * flags_.seq * flags_.accumulate;
  absl::PrintF("%d parameters in %s, %d threads, text of %d tokens: %s\n",
               report_.parameters, report_.dtype, threads, corpus_.size(),
               corpus_.path());
  for (const terrace::ZeroConfigNote& note : flags_.notes) {
    absl::PrintF("%s: %s: %s\n", flags_.config, note.path, note.text);
  }
  const MemoryNeed need = EstimateMemory(flags_);
  absl::PrintF("memory needed: about %s\n", Describe(need));
  absl::Status status = CheckMemory(need, terrace::AvailableMemoryBytes());
  if (status.ok() && !flags_.json.empty()) {
    status = CheckWritable(flags_.json);
  }
  if (!status.ok() || !flags_.offloaded()) return status;

  auto plan = PlanOffload(flags_);
  if (!plan.ok()) return plan.status();
  plan_ = *std::move(plan);
  absl::PrintF("%s", PlanText(*plan_));
  std::fflush(stdout);
  plan_->runtime.threads = flags_.update_threads > 0
                               ? std::min(flags_.update_threads, threads)
                               : threads;
  report_.offloaded = true;
  report_.state_bytes = plan_->plan.state_bytes;
  report_.budget_bytes = plan_->budget_bytes;
  report_.window_bytes = plan_->plan.window_bytes;
  report_.chunk_bytes = plan_->plan.chunk_bytes;
  status = CheckDisk(*plan_);
  if (!status.ok()) return status;
  if (!plan_->joined) {
    auto runtime = terrace::Runtime::Create(plan_->runtime);
    if (!runtime.ok()) return runtime.status();
    runtime_ = *std::move(runtime);
  }
  // Last: it makes a directory, and nothing is to be left behind.
  return PrepareCheckpoints(flags_, corpus_);
}

absl::Status Training::Run() {
  Gpt model(flags_.shape, flags_.dtype, flags_.seed);
  if (flags_.parameters_are_below()) {
    auto place = ParameterPlace::Create(flags_, model);
    if (!place.ok()) return place.status();
    parameters_ = *std::move(place);
    parameters_->BeginStep();
  }
  absl::Status status;
  if (plan_) {
    status = RunOffloaded(model);
  } else {
    const auto optimizer = MakeInMemoryOptimizer(flags_, model);
    status = RunSteps(model, *optimizer);
    if (status.ok()) status = KeepPeak();
  }
  if (parameters_) {
    status.Update(parameters_->Close());
    parameters_.reset();  // before the model
  }
  return status;
}

void Training::Observe(const StepRecord& record) {
  report_.steps.push_back(record);
  if (parameters_) parameters_->BeginStep();
}

absl::Status Training::RunOffloaded(Gpt& model) {
  auto optimizer =
      plan_->joined
          ? OffloadedModelOptimizer::Join(*plan_, parameters_->offload(), model)
          : OffloadedModelOptimizer::Create(*plan_, std::move(runtime_), model);
  if (!optimizer.ok()) return optimizer.status();
  if (plan_->joined) {
    report_.budget_bytes = parameters_->offload().stats().budget_bytes;
    absl::PrintF("parameters, gradients and state in memory: at most %s\n",
                 BytesText(static_cast<double>(report_.budget_bytes)));
  }
  absl::Status status = ResumeAndTrain(model, **optimizer);
  const terrace::Stats stats = (*optimizer)->GetStats();
  report_.arena_peak_bytes = stats.host.peak_bytes;
  report_.resident_bytes = stats.resident_bytes;
  report_.tiers = stats.tiers;
  report_.links = stats.links;
  report_.engine = stats.engine;
  report_.machine_profile = stats.machine_profile;
  report_.direct_io = true;
  for (const terrace::TierStats& path : stats.paths()) {
    report_.direct_io = report_.direct_io && path.disk.direct_io;
  }
  if (status.ok()) status = KeepPeak();
  if (status.ok() && flags_.verify) {
    auto saved = SaveParameters(model, **optimizer, plan_->scratch);
    status = saved.status();
    if (saved.ok()) final_parameters_ = *std::move(saved);
  }
  status.Update((*optimizer)->Close());
  return status;
}

absl::Status Training::KeepPeak() {
  const absl::StatusOr<int64_t> peak = PeakResidentBytes();
  if (!peak.ok()) return peak.status();
  report_.rss_peak_bytes = *peak;
  return absl::OkStatus();
}

absl::Status Training::RunSteps(Gpt& model, ModelOptimizer& optimizer) {
  return Train(
      flags_, corpus_, model, optimizer, [&](const StepRecord& record) {
        Observe(record);
        absl::PrintF("%s\n",
                     ProgressLine(report_, record, flags_.steps, nullptr));
        std::fflush(stdout);
        return absl::OkStatus();
      });
}

absl::Status Training::ResumeAndTrain(Gpt& model,
                                      OffloadedModelOptimizer& optimizer) {
  auto progress = Resume(flags_, model, optimizer.offloaded());
  if (!progress.ok()) return progress.status();
  int64_t saved = progress->completed;
  const auto save = [&] {
    saved = progress->completed;
    return Save(flags_, corpus_, model, optimizer.offloaded(), *progress);
  };
  StepRecord between;  // what checkpoints move is no step's
  optimizer.Complete(&between);
  const absl::Status status = Train(
      flags_, corpus_, model, optimizer,
      [&](const StepRecord& record) {
        Observe(record);
        StepRecord& kept = report_.steps.back();
        const terrace::Stats stats = optimizer.Complete(&kept);
        absl::PrintF("%s\n", ProgressLine(report_, kept, flags_.steps, &stats));
        std::fflush(stdout);
        if (!SaveIsDue(flags_, progress->completed)) return absl::OkStatus();
        absl::Status written = save();
        optimizer.Complete(&between);
        return written;
      },
      *progress);
  if (!absl::IsCancelled(status) || flags_.save.empty() ||
      progress->completed == saved) {
    return status;
  }
  const absl::Status written = save();
  return written.ok() ? status : written;
}

absl::Status Training::Conclude() {
  absl::PrintF("%s", SkippedText(report_));
  if (!plan_) {
    absl::PrintF("process, at most: %s\n",
                 BytesText(static_cast<double>(report_.rss_peak_bytes)));
  } else {
    report_.memory_bytes_per_second =
        MeasureMemoryBytesPerSecond(at::get_num_threads());
    absl::PrintF("%s", SummaryTable(report_));
  }
  std::fflush(stdout);
  if (final_parameters_) {
    std::vector<double> losses;
    for (const StepRecord& step : report_.steps) losses.push_back(step.loss);
    absl::PrintF("verify: training again in memory, twice\n");
    std::fflush(stdout);
    auto verification = Verify(flags_, corpus_, losses, *final_parameters_);
    if (!verification.ok()) return verification.status();
    report_.verification = *verification;
    absl::PrintF("%s", VerificationText(*verification));
  }
  if (!flags_.json.empty()) {
    const absl::Status status = WriteFile(flags_.json, JsonText(report_));
    if (!status.ok()) return status;
  }
  if (report_.verification &&
      !(report_.verification->identical() && report_.verification->close())) {
    return absl::FailedPreconditionError(
        "verify: the run is not what it would have been in memory");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Run(const Flags& flags) {
  const absl::StatusOr<Corpus> corpus =
      Corpus::Open(flags.data.empty() ? TRAIN_GPT_DEFAULT_DATA : flags.data,
                   flags.shape.vocab, flags.seq + 1);
  if (!corpus.ok()) return corpus.status();
  Training training(flags, *corpus);
  absl::Status status = training.Prepare();
  if (status.ok()) status = training.Run();
  if (status.ok()) status = training.Conclude();
  return status;
}

}  // namespace train_gpt
