// Checkpoints of the Python package: the model's tensors where they are, the
// optimizer's state streamed, all else as one block of bytes. A part of
// OptimizerBinding, which says how it answers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "libtorch/python/optimizer_home.h"
#include "libtorch/python/outcome.h"
#include "terrace/checkpoint.h"

namespace terrace {

class CheckpointBinding {
 public:
  explicit CheckpointBinding(OptimizerHome& home) : home_(home) {}
  ~CheckpointBinding();
  CheckpointBinding(const CheckpointBinding&) = delete;
  CheckpointBinding& operator=(const CheckpointBinding&) = delete;

  // A checkpoint of these tensors, the optimizer's state where it is open, and
  // `rest`, bytes of the caller's. `positions` has each tensor's among the
  // optimizer's parameters, or -1. On success the message is the bytes written.
  Outcome Save(const std::string& directory,
               const std::vector<at::Tensor>& tensors,
               const std::vector<std::string>& names,
               const std::vector<int64_t>& positions, const at::Tensor& rest);
  // The same in parts, of ranks that share the state; see CheckpointCommit.
  // Position -2: another rank's. On success the message of WritePart is the
  // part, that of CommitSave the bytes written. With `parameters` the tensors
  // are written too. EndSave gives up what was not committed; again: nothing.
  Outcome BeginSave(const std::string& directory, const at::Tensor& rest);
  Outcome WritePart(const std::string& directory,
                    const std::vector<at::Tensor>& tensors,
                    const std::vector<std::string>& names,
                    const std::vector<int64_t>& positions, bool parameters);
  Outcome CommitSave(const std::vector<std::string>& parts);
  void EndSave();
  // Opens a checkpoint; an Outcome and the `rest`, by which, and by Fits, a
  // caller sees whether the whole fits before anything changes. Load fills the
  // tensors and the optimizer from the checkpoint that was opened, also if
  // another one has taken its place since. EndLoad closes it; again: nothing.
  std::tuple<Outcome, at::Tensor> BeginLoad(const std::string& directory);
  Outcome Fits(const std::vector<at::Tensor>& tensors,
               const std::vector<std::string>& names,
               const std::vector<int64_t>& positions);
  Outcome Load(const std::vector<at::Tensor>& tensors,
               const std::vector<std::string>& names,
               const std::vector<int64_t>& positions);
  void EndLoad();

 private:
  absl::Status Open(const std::string& directory, at::Tensor& rest);
  absl::Status CheckFits(const std::vector<at::Tensor>& tensors,
                         const std::vector<std::string>& names,
                         const std::vector<int64_t>& positions);
  absl::Status LoadAll(const std::vector<at::Tensor>& tensors,
                       const std::vector<std::string>& names,
                       const std::vector<int64_t>& positions);

  OptimizerHome& home_;
  std::unique_ptr<CheckpointCommit> commit_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

}  // namespace terrace
