// One million weights stepped by LibTorch's face of Terrace.
#include <ATen/ATen.h>

#include <cstdio>

#include "terrace/runtime.h"
#include "terrace/torch/optimizer.h"

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
  std::printf("weight %.4f;\n", weight.flatten()[-1].item<float>());
  return status;
}

int main(int, char** argv) {
  const absl::Status status = Train(argv[1]);
  if (!status.ok()) std::puts(status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
