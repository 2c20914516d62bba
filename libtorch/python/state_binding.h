// The state of an optimizer of the Python package, as optimizer.state,
// state_dict() and load_state_dict() read and write it. A part of
// OptimizerBinding, which says how it answers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "libtorch/python/mapped_file.h"
#include "libtorch/python/optimizer_home.h"
#include "libtorch/python/outcome.h"

namespace terrace {

class StateBinding {
 public:
  explicit StateBinding(OptimizerHome& home) : home_(home) {}
  StateBinding(const StateBinding&) = delete;
  StateBinding& operator=(const StateBinding&) = delete;

  // All the state of several parameters, given with their indices: of each in
  // turn its step, the master if it is a 16-bit one, and both moments, as new
  // fp32 tensors in CPU memory, the step a scalar, the others of its shape. A
  // master that is not there is made from the parameter, as the next step
  // will. With a file, which was opened for these parameters among others, all
  // but the steps are mapped from it.
  std::tuple<Outcome, std::vector<at::Tensor>> CopyStates(
      const std::vector<int64_t>& indices,
      const std::vector<at::Tensor>& parameters,
      const std::optional<c10::intrusive_ptr<MappedFileBinding>>& file);

  // A parameter's state from element `offset` on, into contiguous fp32 tensors
  // of one size; an empty one is not wanted. What was read last stays in
  // memory until EndReading or any other use.
  Outcome Read(int64_t parameter, int64_t offset, const at::Tensor& master,
               const at::Tensor& first_moment, const at::Tensor& second_moment);
  void EndReading();
  // The same the other way round; an empty master is made in the next step, and
  // elements of one that do not round to those of the parameter. The
  // first one begins a load, which forgets all state, and SetSteps ends it; any
  // other use before leaves the optimizer half loaded (see StateWriter), and
  // both refuse to go on until Reset, Open or Load.
  Outcome Write(int64_t parameter, int64_t offset, const at::Tensor& master,
                const at::Tensor& first_moment,
                const at::Tensor& second_moment);
  // Over the whole state of one parameter that there is, without a load; of
  // kinds that are empty nothing changes. Forget: of these parameters.
  Outcome Edit(int64_t parameter, const at::Tensor& master,
               const at::Tensor& first_moment, const at::Tensor& second_moment);
  Outcome Forget(const std::vector<int64_t>& parameters);
  std::vector<int64_t> Steps();
  Outcome SetSteps(int64_t step, const std::vector<int64_t>& steps);
  Outcome Reset();

 private:
  absl::Status CopyAll(const std::vector<int64_t>& indices,
                       const std::vector<at::Tensor>& parameters,
                       MappedFile* file, std::vector<at::Tensor>& copies);
  absl::Status CopyOne(int64_t index, const at::Tensor& parameter,
                       StateReader& reader, MappedFile* file,
                       const at::Tensor& buffer,
                       std::vector<at::Tensor>& copies);

  OptimizerHome& home_;
};

}  // namespace terrace
