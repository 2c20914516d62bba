// The steps of an optimizer of the Python package: those that are done when
// they return, those whose updates go on after it, and those whose gradients
// come one after another. A part of OptimizerBinding, which says how it
// answers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "libtorch/python/optimizer_home.h"
#include "libtorch/python/outcome.h"
#include "libtorch/step/gathered/norm_gradients.h"

namespace terrace {

class StepBinding {
 public:
  explicit StepBinding(OptimizerHome& home) : home_(home) {}
  StepBinding(const StepBinding&) = delete;
  StepBinding& operator=(const StepBinding&) = delete;

  // One step with the parameters' own gradients. `group_of` has the group of
  // each as int64, -1 of one that is not stepped; `numbers` are those of
  // AdamOfEach. Where these parameters
  // are a share, `everything` has those of all ranks, whose norm counts; else
  // nothing.
  Outcome Step(const std::vector<at::Tensor>& parameters,
               const at::Tensor& group_of, const std::vector<double>& numbers,
               double loss_scale, const std::vector<at::Tensor>& everything);

  // As Step, but the updates go on after it has returned, by a thread of their
  // own, in the order in which operations took the parameters after the last
  // such step. Until they have ended every other method waits for them. One
  // that failed is the answer of the next that uses or changes the state, Close
  // too; from then on of each but StepLate and Flush, which try it again first,
  // and a Load that fits, Reset and Write, which give it up. Flush waits, and
  // nothing else.
  Outcome StepLate(const std::vector<at::Tensor>& parameters,
                   const at::Tensor& group_of,
                   const std::vector<double>& numbers, double loss_scale,
                   const std::vector<at::Tensor>& everything);
  Outcome Flush();
  // Waits, and answers with what failed, each time; a forked child has nothing.
  Outcome Settle();
  // Waits, of any optimizer, as what writes the tensor would.
  static Outcome AwaitUpdates(const at::Tensor& tensor);
  // Blocks until no update of any step goes on, however the updates ended.
  static Outcome AwaitAllUpdates();

  // A step whose gradients come one after another, as terrace/gradual_step.h:
  // of the parameters that are in a group. `order` has their places as the
  // gradients are expected. Supply takes the gradient of one out of its .grad
  // and frees it when it was used; EndSupply says that no more come; Finish
  // blocks until the step is done, and GiveUp ends it as failed. Between Begin
  // and Finish whatever else uses the state is FailedPrecondition, and after
  // an error of Supply, EndSupply or Finish for good.
  Outcome BeginGradual(const std::vector<at::Tensor>& parameters,
                       const at::Tensor& group_of,
                       const std::vector<double>& numbers,
                       const std::vector<int64_t>& order);
  Outcome Supply(int64_t place, const at::Tensor& parameter);
  Outcome EndSupply();
  Outcome FinishGradual();
  Outcome GiveUpGradual(const std::string& why);

  // Whether the last step was skipped: a gradient was not finite.
  bool Skipped();
  // Whether the last step failed half-way and is to be repeated.
  bool Incomplete();

 private:
  absl::Status StepNow(const std::vector<at::Tensor>& parameters,
                       const at::Tensor& group_of,
                       const std::vector<double>& numbers, double loss_scale,
                       const std::vector<at::Tensor>& everything);
  absl::Status BeginLate(const std::vector<at::Tensor>& parameters,
                         const at::Tensor& group_of,
                         const std::vector<double>& numbers, double loss_scale,
                         const std::vector<at::Tensor>& everything);
  absl::Status StartGradual(const std::vector<at::Tensor>& parameters,
                            const at::Tensor& group_of,
                            const std::vector<double>& numbers,
                            const std::vector<int64_t>& order);
  absl::Status SupplyOne(int64_t place, const at::Tensor& parameter);
  absl::Status EndGradual();
  // Frees the gradients that were used. `status` is of the step.
  absl::Status AfterSupply(absl::Status status);

  OptimizerHome& home_;
  NormGradients norm_gradients_;
};

}  // namespace terrace
