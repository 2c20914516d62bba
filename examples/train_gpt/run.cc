#include "examples/train_gpt/run.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/train_gpt/corpus.h"
#include "examples/train_gpt/gpt.h"
#include "examples/train_gpt/model_optimizer.h"
#include "examples/train_gpt/process_memory.h"
#include "examples/train_gpt/requirements.h"
#include "examples/train_gpt/trainer.h"

namespace train_gpt {
namespace {

int AllowedCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return CPU_COUNT(&cores);
}

absl::StatusOr<Corpus> OpenCorpus(const Flags& flags) {
  const std::string path =
      flags.data.empty() ? TRAIN_GPT_DEFAULT_DATA : flags.data;
  return Corpus::Open(path, flags.shape.vocab, flags.seq + 1);
}

void PrintStep(const Flags& flags, const StepRecord& record) {
  const double tokens =
      static_cast<double>(flags.batch * flags.seq * flags.accumulate);
  absl::PrintF("step %d/%d  loss %.4f  %.0f tokens/s  %.0f ms\n", record.step,
               flags.steps, record.loss, tokens / record.seconds,
               record.seconds * 1e3);
  std::fflush(stdout);
}

}  // namespace

absl::Status Run(const Flags& flags) {
  const absl::StatusOr<Corpus> corpus = OpenCorpus(flags);
  if (!corpus.ok()) return corpus.status();
  const int threads =
      flags.threads > 0 ? static_cast<int>(flags.threads) : AllowedCores();
  at::set_num_threads(threads);
  absl::PrintF("%d parameters in %s, %d threads, text of %d tokens: %s\n",
               ParameterCount(flags.shape),
               flags.dtype == Dtype::kFloat32 ? "fp32" : "bf16", threads,
               corpus->size(), corpus->path());
  const MemoryNeed need = EstimateMemory(flags);
  absl::PrintF("memory needed: about %s\n", Describe(need));
  const absl::StatusOr<int64_t> available = AvailableMemoryBytes();
  if (!available.ok()) return available.status();
  absl::Status status = CheckMemory(need, *available);
  if (!status.ok()) return status;
  Gpt model(flags.shape, flags.dtype, flags.seed);
  const auto optimizer = MakeInMemoryOptimizer(flags, model);
  status = Train(flags, *corpus, model, *optimizer,
                 [&](const StepRecord& record) { PrintStep(flags, record); });
  if (!status.ok()) return status;
  const absl::StatusOr<int64_t> peak = PeakResidentBytes();
  if (peak.ok()) {
    absl::PrintF("peak memory of the process: %.1f MiB\n",
                 static_cast<double>(*peak) / (1 << 20));
  }
  return absl::OkStatus();
}

}  // namespace train_gpt
