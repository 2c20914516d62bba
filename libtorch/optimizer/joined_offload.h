// What an optimizer of LibTorch has of the offloaded model that it joined: room
// in its Runtime and budget, the way to parameters and gradients that are
// below, and that gradients go there as backward makes them.
//
//   auto joined = JoinedOffload::Join(place, specs, options, calls);
//   auto& runtime = (*joined)->runtime();
//   optimizer = OffloadedOptimizer::Create(runtime, specs, options);
//   (*joined)->Watch(parameters);
//   ...  // steps whose parameters are at device()'s addresses
//   optimizer.reset();
//   (*joined)->Leave();
//
// Thread-compatible. The optimizer behind it ends before it leaves. In a forked
// child it ends without an effect.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/process.h"
#include "libtorch/hook/gradients.h"
#include "libtorch/offload/joined_optimizers.h"
#include "libtorch/offload/offload_place.h"
#include "libtorch/offload/state_runtime.h"
#include "libtorch/offloaded_device.h"
#include "terrace/optimizer.h"

namespace terrace {

class JoinedOffload final : public JoinedOptimizer {
 public:
  // Of the optimizer, at the model's end: as JoinedOptimizer; Close leaves.
  struct Calls {
    std::function<absl::Status(absl::Time deadline)> flush;
    std::function<absl::Status()> close;
  };

  // For these, of which `specs` tell. Sets the window of `options`, and unless
  // all of the model is in memory the name. InvalidArgument: some are another
  // Offload's (named). Else as StateRuntime::Join.
  static absl::StatusOr<std::unique_ptr<JoinedOffload>> Join(
      std::shared_ptr<OffloadPlace> place,
      absl::Span<const at::Tensor> parameters,
      const std::vector<ParameterSpec>& specs, OptimizerOptions& options,
      Calls calls);
  // Leaves.
  ~JoinedOffload() override;
  JoinedOffload(const JoinedOffload&) = delete;
  JoinedOffload& operator=(const JoinedOffload&) = delete;

  Runtime& runtime() { return state_->runtime(); }
  OffloadedDevice& device() { return device_; }

  // Of those that are the model's: what gradient each has goes below, and what
  // it will have, frozen ones once they require it. Not where the whole model
  // is in memory. Others, and those watched already, are left as they are.
  // Errors: as Hook::ManageGradient.
  absl::Status Watch(absl::Span<const at::Tensor> parameters);

  // Whether gradients go below from now on, as they do at first; of these
  // parameters at once, as Watch. Not while backward goes on.
  absl::Status SetGradientsBelow(bool are_below,
                                 absl::Span<const at::Tensor> parameters);

  // Room for more of them, and these in the optimizer. After an error, which is
  // as of Join and Watch, they are not there.
  absl::Status Extend(OffloadedOptimizer& optimizer,
                      absl::Span<const at::Tensor> parameters,
                      std::vector<ParameterSpec> specs);

  // Nothing of a step goes on: the tensors that it pointed to are let go.
  void EndStep(bool is_complete);

  // Gives the room back; gradients stay in memory from now on. Again: nothing.
  absl::Status Leave();

  absl::Status Flush(absl::Time deadline) override {
    return calls_.flush(deadline);
  }
  absl::Status Close() override { return calls_.close(); }

 private:
  JoinedOffload(std::shared_ptr<OffloadPlace> place,
                std::unique_ptr<StateRuntime> state, Calls calls);
  std::unique_ptr<Gradients> MakeGradients() const;

  const Process process_;
  const Calls calls_;
  std::shared_ptr<OffloadPlace> place_;  // null: it has left
  std::unique_ptr<StateRuntime> state_;
  std::unique_ptr<Gradients> gradients_;  // null: they stay in memory
  OffloadedDevice device_;
};

}  // namespace terrace
