// A model whose parameters are on disks: each is in memory while an operation
// uses it. The optimizer's state joins it there, or is in memory.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/train_gpt/command_line/flags.h"
#include "examples/train_gpt/gpt.h"
#include "terrace/torch/offload.h"

namespace torch::nn {
class Module;
}

namespace train_gpt {

class ParameterPlace {
 public:
  // Takes the parameters of a model over, which outlives this, to
  // flags.parameter_paths, with the flags' budget, or a tenth. A state that
  // joins has its part of it.
  static absl::StatusOr<std::unique_ptr<ParameterPlace>> Create(
      const Flags& flags, Gpt& model);
  ~ParameterPlace();

  // For an optimizer that joins.
  terrace::Offload& offload() { return *offload_; }
  // A training step begins.
  void BeginStep() { offload_->BeginStep(); }
  // The parameters are in memory again. Once.
  absl::Status Close();

 private:
  ParameterPlace() = default;

  std::unique_ptr<::torch::nn::Module> module_;  // outlives the offload
  std::unique_ptr<terrace::Offload> offload_;
};

}  // namespace train_gpt
