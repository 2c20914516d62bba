#include "examples/infer_gpt/infer_run.h"

#include <ATen/Parallel.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/infer_gpt/pass_report.h"
#include "examples/infer_gpt/weights.h"
#include "examples/train_gpt/corpus.h"
#include "examples/train_gpt/peak_memory.h"
#include "examples/train_gpt/report.h"
#include "examples/train_gpt/requirements.h"

namespace infer_gpt {
namespace {

using terrace::Checkpoint;
using train_gpt::BytesText;
using train_gpt::Dtype;

// A number of the run that the checkpoint is of.
absl::StatusOr<int64_t> NumberOf(const Checkpoint& checkpoint,
                                 const std::string& name) {
  const auto found = checkpoint.values().find(name);
  if (found != checkpoint.values().end()) {
    if (const auto* number = std::get_if<int64_t>(&found->second)) {
      return *number;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "it is of another program than train_gpt: it has no ", name));
}

absl::Status TakeShape(const Checkpoint& checkpoint, Flags* flags) {
  train_gpt::ModelShape& shape = flags->shape;
  const std::pair<const char*, int64_t*> numbers[] = {
      {"--layers", &shape.layers},
      {"--heads", &shape.heads},
      {"--width", &shape.width},
      {"--vocab", &shape.vocab},
      {"--context", &shape.context}};
  for (const auto& [name, number] : numbers) {
    const absl::StatusOr<int64_t> saved = NumberOf(checkpoint, name);
    if (!saved.ok()) return saved.status();
    *number = *saved;
  }
  flags->dtype = Dtype::kFloat32;
  for (const Dtype dtype : {Dtype::kBFloat16, Dtype::kFloat16}) {
    if (!checkpoint.parameters().empty() &&
        checkpoint.parameters().front().dtype == train_gpt::DTypeOf(dtype)) {
      flags->dtype = dtype;
    }
  }
  return train_gpt::CheckShape(shape);
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(Flags* flags) {
  if (flags->checkpoint.empty()) return nullptr;
  auto checkpoint = Checkpoint::Open(flags->checkpoint);
  absl::Status status = checkpoint.status();
  if (status.ok()) status = TakeShape(**checkpoint, flags);
  if (status.ok()) return checkpoint;
  return absl::Status(
      status.code(),
      absl::StrCat("--checkpoint ", flags->checkpoint, ": ", status.message()));
}

// FNV-1a over the bytes.
uint64_t DigestOf(const at::Tensor& logits) {
  const at::Tensor whole = logits.contiguous();
  const auto* const bytes =
      static_cast<const unsigned char*>(whole.const_data_ptr());
  uint64_t digest = 0xcbf29ce484222325u;
  for (size_t i = 0; i < whole.nbytes(); ++i) {
    digest = (digest ^ bytes[i]) * 0x100000001b3u;
  }
  return digest;
}

// The passes of a run, in turn.
class Inference {
 public:
  Inference(const Flags& flags, Weights& weights, RunReport& report)
      : flags_(flags), weights_(weights), report_(report) {}

  // The text of the first pass.
  absl::Status Begin(const train_gpt::Corpus& corpus);
  void RunPass();

 private:
  // The mean of each next token's.
  double LossOf(const at::Tensor& logits) const;
  // The likeliest token of each row behind it, in place of its first one.
  void Append(const at::Tensor& logits);

  const Flags& flags_;
  Weights& weights_;
  RunReport& report_;
  std::vector<int64_t> text_;
  at::Tensor tokens_;  // [rows, seq]
};

absl::Status Inference::Begin(const train_gpt::Corpus& corpus) {
  const absl::Status status =
      train_gpt::ReadBatch(corpus, flags_.seed, /*step=*/1, /*micro_batch=*/0,
                           flags_.rows, flags_.seq, &text_);
  if (!status.ok()) return status;
  tokens_ =
      at::from_blob(text_.data(), {flags_.rows, flags_.seq + 1}, at::kLong)
          .narrow(1, 0, flags_.seq);
  report_.tokens.resize(static_cast<size_t>(flags_.rows));
  return absl::OkStatus();
}

void Inference::RunPass() {
  const int64_t read = weights_.moved().bytes_read;
  const auto start = std::chrono::steady_clock::now();
  weights_.BeginPass();
  const at::Tensor logits = weights_.model().Logits(tokens_);
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  if (report_.passes.empty()) report_.loss = LossOf(logits);
  report_.passes.push_back({.seconds = seconds.count(),
                            .logits_digest = DigestOf(logits),
                            .bytes_read = weights_.moved().bytes_read - read});
  Append(logits);
}

double Inference::LossOf(const at::Tensor& logits) const {
  auto* const text = const_cast<int64_t*>(text_.data());
  const at::Tensor next =
      at::from_blob(text, {flags_.rows, flags_.seq + 1}, at::kLong)
          .narrow(1, 1, flags_.seq);
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(2)}),
                                next.reshape({-1}))
      .item<double>();
}

void Inference::Append(const at::Tensor& logits) {
  const at::Tensor next =
      at::argmax(logits.select(1, flags_.seq - 1), 1, /*keepdim=*/true);
  for (int64_t row = 0; row < flags_.rows; ++row) {
    report_.tokens[static_cast<size_t>(row)].push_back(
        next.select(0, row).item<int64_t>());
  }
  tokens_ = at::cat({tokens_.narrow(1, 1, flags_.seq - 1), next}, 1);
}

void PrintPlan(const Flags& flags, const RunReport& report) {
  absl::PrintF("%d parameters in %s, ", report.parameters, report.dtype);
  if (flags.in_memory) {
    absl::PrintF("all in memory\n");
  } else {
    const auto bytes = [](int64_t count) {
      return BytesText(static_cast<double>(count));
    };
    absl::PrintF("%s, of them in memory at most %s%s\n",
                 bytes(report.plan.weight_bytes),
                 bytes(report.plan.budget_bytes),
                 report.plan.budget_raised ? " (the least that works)" : "");
  }
  std::fflush(stdout);
}

absl::Status RunPasses(const Flags& flags, const train_gpt::Corpus& corpus,
                       Weights& weights, RunReport* report) {
  const c10::InferenceMode inference_mode;
  Inference inference(flags, weights, *report);
  const absl::Status status = inference.Begin(corpus);
  if (!status.ok()) return status;
  for (int64_t pass = 1; pass <= flags.passes; ++pass) {
    inference.RunPass();
    const PassRecord& record = report->passes.back();
    absl::PrintF("pass %d/%d  %.3f s  read %s  logits %016x\n", pass,
                 flags.passes, record.seconds,
                 BytesText(static_cast<double>(record.bytes_read)),
                 record.logits_digest);
    std::fflush(stdout);
  }
  report->moved = weights.moved();
  return absl::OkStatus();
}

absl::Status Infer(const Flags& flags, Checkpoint* checkpoint,
                   const train_gpt::Corpus& corpus, RunReport* report) {
  auto weights = Weights::Make(flags, checkpoint);
  if (!weights.ok()) return weights.status();
  report->plan = (*weights)->plan();
  PrintPlan(flags, *report);
  absl::Status status = RunPasses(flags, corpus, **weights, report);
  status.Update((*weights)->Close());
  if (!status.ok()) return status;
  const absl::StatusOr<int64_t> peak = train_gpt::PeakResidentBytes();
  if (!peak.ok()) return peak.status();
  report->rss_peak_bytes = *peak;
  absl::PrintF("loss of the text %.6f; process, at most: %s\n", report->loss,
               BytesText(static_cast<double>(report->rss_peak_bytes)));
  return absl::OkStatus();
}

}  // namespace

absl::Status Run(Flags flags) {
  if (!flags.json.empty()) {
    const absl::Status status = train_gpt::CheckWritable(flags.json);
    if (!status.ok()) return status;
  }
  const auto checkpoint = OpenCheckpoint(&flags);
  if (!checkpoint.ok()) return checkpoint.status();
  if (flags.seq > flags.shape.context) {
    return absl::InvalidArgumentError(
        absl::StrCat("--seq ", flags.seq, " is more than the model's context ",
                     "of ", flags.shape.context));
  }
  const auto corpus = train_gpt::Corpus::Open(
      flags.data.empty() ? INFER_GPT_DEFAULT_DATA : flags.data,
      flags.shape.vocab, flags.seq + 1);
  if (!corpus.ok()) return corpus.status();
  at::set_num_threads(
      flags.threads > 0
          ? static_cast<int>(flags.threads)
          : static_cast<int>(std::thread::hardware_concurrency()));
  RunReport report;
  report.parameters = train_gpt::ParameterCount(flags.shape);
  report.dtype = terrace::DTypeName(train_gpt::DTypeOf(flags.dtype));
  report.in_memory = flags.in_memory;
  const absl::Status status = Infer(flags, checkpoint->get(), *corpus, &report);
  if (!status.ok() || flags.json.empty()) return status;
  return train_gpt::WriteFile(flags.json, JsonText(report));
}

}  // namespace infer_gpt
