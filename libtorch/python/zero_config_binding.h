// DeepSpeed's JSON for the Python package: the text read once, what it says as
// JSON, and its schedule as numbers.
//
// Thread-safe once it is open: nothing changes then.
#pragma once

#include <torch/custom_class.h>

#include <string>
#include <vector>

#include "libtorch/python/outcome.h"
#include "terrace/zero_config.h"

namespace terrace {

class ZeroConfigBinding final : public ::torch::CustomClassHolder {
 public:
  // `caller` is a JSON object with the names of ZeroConfigCaller's fields;
  // parameter_dtype is "fp32", "bf16" or "fp16".
  Outcome Open(const std::string& text, const std::string& caller);

  // The settings, as JSON.
  std::string Describe() const;

  // Options for these parameters, as for OptimizerBinding::Open, and notes;
  // looks whether paths and memory are there. budget_bytes 0: chosen;
  // `at_least_minimum`: raised to the minimum if below it. On success the
  // message is JSON.
  Outcome Plan(const std::vector<at::Tensor>& parameters,
               const std::vector<std::string>& names, int64_t budget_bytes,
               bool at_least_minimum);

  // Learning rate and both betas of a step, counted from 1.
  std::vector<double> AdamOfStep(int64_t step) const;

 private:
  ZeroConfigSettings settings_;
  bool is_cast_ = false;  // the parameters are, before they are stepped
};

}  // namespace terrace
