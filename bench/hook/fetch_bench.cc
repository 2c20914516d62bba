#include "bench/hook/fetch_bench.h"

#include <ATen/ATen.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "bench/harness.h"
#include "terrace/runtime.h"
#include "terrace/torch/hook.h"

namespace terrace::bench {
namespace {

constexpr int64_t kElements = 1024;  // of 4 bytes each

struct Size {
  int64_t tensors = 0;
  int64_t parts = 1;  // the window is one of so many of the model
};

// A model with a window for all of it, or for a part, where every tensor's
// fetch reads it and has another leave.
class Model {
 public:
  static absl::StatusOr<std::unique_ptr<Model>> Make(const Size& size) {
    const int64_t tensors = size.tensors;
    auto model = std::make_unique<Model>();
    const int64_t bytes = tensors * ResidentBytes(kElements * 4);
    const int64_t window_bytes = bytes / size.parts;
    Options options;
    options.host_budget_bytes = window_bytes + window_bytes / 4;
    options.memory_paths = 1;
    options.memory_path_bytes = 2 * bytes;
    TERRACE_ASSIGN_OR_RETURN(model->runtime_, Runtime::Create(options));
    TERRACE_ASSIGN_OR_RETURN(
        model->hook_,
        Hook::Create(*model->runtime_, {.window_bytes = window_bytes}));
    std::vector<NamedTensor> named;
    for (int64_t i = 0; i < tensors; ++i) {
      model->tensors_.push_back(at::ones({kElements}));
      named.push_back({absl::StrCat("t", i), model->tensors_.back()});
    }
    TERRACE_RETURN_IF_ERROR(model->hook_->Manage(named));
    return model;
  }

  // Nanoseconds a tensor.
  double Forward() {
    const absl::Time begun = absl::Now();
    for (const at::Tensor& each : tensors_) each.sum();
    return absl::ToDoubleNanoseconds(absl::Now() - begun) /
           static_cast<double>(tensors_.size());
  }
  void Evict() { hook_->EvictAll(); }
  // Messages to the mover that a tensor's fetch takes, with those by which it
  // leaves again.
  double Requests() {
    const int64_t before = runtime_->GetStats().requests;
    Forward();
    Evict();
    const int64_t asked = runtime_->GetStats().requests - before - 1;
    return static_cast<double>(asked) / static_cast<double>(tensors_.size());
  }

 private:
  std::unique_ptr<Runtime> runtime_;
  std::vector<at::Tensor> tensors_;
  std::unique_ptr<Hook> hook_;
};

}  // namespace

absl::Status RunFetches(int64_t rounds, bool json) {
  const std::vector<Size> sizes = {{2000}, {16000}, {2000, 4}, {16000, 4}};
  std::vector<std::unique_ptr<Model>> models;
  for (const Size& size : sizes) {
    TERRACE_ASSIGN_OR_RETURN(models.emplace_back(), Model::Make(size));
    models.back()->Forward();
  }
  std::vector<std::vector<double>> away(sizes.size());
  std::vector<std::vector<double>> again(sizes.size());
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      models[i]->Evict();
      away[i].push_back(models[i]->Forward());
      again[i].push_back(models[i]->Forward());
    }
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    models[i]->Evict();
    const double requests = models[i]->Requests();
    const Spread there = SpreadOf(again[i]);
    const Spread fetched = SpreadOf(away[i]);
    if (json) {
      absl::PrintF(
          "{\"tensors\":%d,\"window_parts\":%d,"
          "\"requests\":%.3f,\"ns_again\":[%.0f,%.0f,%.0f],"
          "\"ns_fetched\":[%.0f,%.0f,%.0f]}\n",
          sizes[i].tensors, sizes[i].parts, requests, there.minimum,
          there.median, there.maximum, fetched.minimum, fetched.median,
          fetched.maximum);
      continue;
    }
    absl::PrintF(
        "%5d tensors, window 1/%d: fetched %.0f ns each (%.0f to %.0f), and "
        "again %.0f; %.2f messages each\n",
        sizes[i].tensors, sizes[i].parts, fetched.median, fetched.minimum,
        fetched.maximum, there.median, requests);
  }
  return absl::OkStatus();
}

}  // namespace terrace::bench
