// A runtime over a memory device and small parameters with recorded gradients,
// for tests of LibTorch's side.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "terrace/torch/optimizer.h"

namespace terrace {

// The state of the small models here is more than this, so that it streams.
inline std::unique_ptr<Runtime> MakeRuntime(int64_t budget_bytes = 512 << 10) {
  at::set_num_threads(1);  // tests share the machine
  Options options;
  options.host_budget_bytes = budget_bytes;
  options.memory_paths = 1;
  options.memory_path_bytes = 64 << 20;
  options.threads = 2;
  options.huge_pages = HugePages::kOff;
  auto runtime = Runtime::Create(options);
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  return *std::move(runtime);
}

inline OptimizerOptions SmallChunks() {
  OptimizerOptions options;
  options.chunk_bytes = 64 << 10;
  return options;
}

// N(0,1), as leaves that want gradients.
inline std::vector<at::Tensor> MakeParameters(at::ScalarType dtype = at::kFloat,
                                              int64_t seed = 1) {
  at::manual_seed(static_cast<uint64_t>(seed));
  std::vector<at::Tensor> parameters;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {97, 101}, {}, {0, 3}, {1}, {40'013}, {3, 5, 7}}) {
    parameters.push_back(
        at::randn(shape).to(dtype).clone().set_requires_grad(true));
  }
  return parameters;
}

// The same values in memory of their own, of another dtype.
inline std::vector<at::Tensor> CopiesOf(const std::vector<at::Tensor>& tensors,
                                        at::ScalarType dtype) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().to(dtype).clone().set_requires_grad(true));
  }
  return copies;
}

// N(0,1), the same for the same step; rounded to each gradient's dtype.
inline void DrawGradients(int64_t step,
                          const std::vector<at::Tensor>& parameters) {
  at::manual_seed(static_cast<uint64_t>(1000 + step));
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() =
        at::randn(parameter.sizes(), at::kFloat).to(parameter.scalar_type());
  }
}

// The largest |a - b|, in double.
inline double Distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  return (a.detach().to(at::kDouble) - b.detach().to(at::kDouble))
      .abs()
      .max()
      .item<double>();
}

inline bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  return a.detach().equal(b.detach());
}

}  // namespace terrace
