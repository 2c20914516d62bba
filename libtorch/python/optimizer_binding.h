// One optimizer of the Python package behind a class that TORCH_LIBRARY can
// hand to Python: it opens and closes the optimizer and has its parts, over one
// home (optimizer_home.h).
//
// Nothing here and in the parts throws: a method that can fail returns an
// Outcome, from which the package makes an exception of the right Python type.
// LibTorch calls the methods without Python's lock held.
//
// Thread-safe: one call runs at a time, others wait. A forked child's calls
// fail.
#pragma once

#include <torch/custom_class.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "libtorch/python/checkpoint_binding.h"
#include "libtorch/python/offload_binding.h"
#include "libtorch/python/optimizer_home.h"
#include "libtorch/python/outcome.h"
#include "libtorch/python/state_binding.h"
#include "libtorch/python/step_binding.h"
#include "libtorch/tensors_apart.h"

namespace terrace {

class OptimizerBinding final : public ::torch::CustomClassHolder {
 public:
  // Whether this process can use it at all; a forked child cannot.
  Outcome Check();

  // Reserves memory and disk for the state of these parameters, which take the
  // places from 0 on; `options` is as for ReadBindingOptions. Ends what was
  // open before. With an offloaded model it joins that: its state is of the
  // model's Runtime and budget.
  Outcome Open(const std::vector<at::Tensor>& parameters,
               const std::vector<std::string>& names,
               const std::string& options,
               const std::optional<c10::intrusive_ptr<OffloadBinding>>& model);
  // More of them, which take the next places.
  Outcome Add(const std::vector<at::Tensor>& parameters,
              const std::vector<std::string>& names);

  // Whether all parameters, of a share those of all ranks too, are apart in
  // memory; the open optimizer has no say in it. Those of a step are looked at
  // there as well. Without names they are called by their positions.
  Outcome CheckApart(const std::vector<at::Tensor>& parameters,
                     const std::vector<std::string>& names);

  // Of these stats, `updates_waited_seconds` alone.
  std::tuple<Outcome, double> WaitedSeconds();
  // A JSON object; see StatsAsJson. Of one that was never open, all are 0.
  std::tuple<Outcome, std::string> Stats();
  Outcome Close();

  StepBinding& steps() { return steps_; }
  StateBinding& state() { return state_; }
  CheckpointBinding& checkpoints() { return checkpoints_; }

 private:
  OptimizerHome home_;
  StepBinding steps_{home_};
  StateBinding state_{home_};
  CheckpointBinding checkpoints_{home_};
  TensorsApart apart_;   // of CheckApart
  bool closed_ = false;  // by Close
};

}  // namespace terrace
