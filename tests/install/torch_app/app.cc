// One million weights stepped by LibTorch's face of Terrace, and once more as
// an offloaded model's.
#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <cstdio>

#include "terrace/runtime.h"
#include "terrace/torch/activation_scope.h"
#include "terrace/torch/group_options.h"
#include "terrace/torch/hook.h"
#include "terrace/torch/meta.h"
#include "terrace/torch/offload.h"
#include "terrace/torch/optimizer.h"
#include "terrace/torch/placement.h"

namespace {

struct Layer : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", at::ones({1000, 1000}));
};

// The same weights as an offloaded model's.
absl::StatusOr<at::Tensor> TrainOffloaded(const char* path) {
  Layer layer;
  terrace::OffloadOptions options;
  options.memory_budget_share = 0.1;  // the rest below
  options.nvme_paths = {path};
  auto offload = terrace::Offload::Create(layer, options);
  if (!offload.ok()) return offload.status();
  terrace::OptimizerOptions adam;
  adam.adam.learning_rate = 0.1;
  auto optimizer =
      terrace::OffloadedAdamW::Create(**offload, layer.parameters(), adam);
  if (!optimizer.ok()) return optimizer.status();
  for (int step = 0; step < 3; ++step) {
    (*offload)->BeginStep();
    (*optimizer)->zero_grad();
    (layer.weight * 0.5).sum().backward();
    const absl::Status status = (*optimizer)->TryStep();
    if (!status.ok()) return status;
  }
  const std::vector<terrace::TierStats> tiers =
      (*offload)->stats().runtime.tiers;
  if (tiers.size() < 2 || tiers[1].peak_bytes == 0) {
    return absl::InternalError("nothing was below");
  }
  const absl::Status closed =
      (*offload)->Close(terrace::Offload::AtClose::kRestore);
  if (!closed.ok()) return closed;
  return layer.weight.detach();
}

}  // namespace

absl::Status Train(const char* path) {
  terrace::Options options;
  options.host_budget_bytes = 4 << 20;
  options.paths = {path};
  auto runtime = terrace::Runtime::Create(options);
  if (!runtime.ok()) return runtime.status();
  const at::Tensor weight = at::ones({1000, 1000}).set_requires_grad(true);
  terrace::OptimizerOptions adam;
  adam.adam.learning_rate = 0.1;
  auto optimizer = terrace::OffloadedAdamW::Create(**runtime, {weight}, adam);
  if (!optimizer.ok()) return optimizer.status();
  weight.mutable_grad() = at::full({1000, 1000}, 0.5);
  absl::Status status;
  for (int step = 0; step < 3 && status.ok(); ++step) {
    status = (*optimizer)->TryStep();
  }
  if (!status.ok()) return status;
  std::printf("weight %.4f;\n", weight.flatten()[-1].item<float>());
  const absl::StatusOr<at::Tensor> offloaded = TrainOffloaded(path);
  if (!offloaded.ok()) return offloaded.status();
  return at::equal(*offloaded, weight.detach())
             ? absl::OkStatus()
             : absl::InternalError("an offloaded model has other weights");
}

int main(int, char** argv) {
  const absl::Status status = Train(argv[1]);
  if (!status.ok()) std::puts(status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
