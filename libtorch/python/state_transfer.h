// An optimizer's state on its way to or from tensors, in as many calls as the
// caller likes. Of an OptimizerHome, whose lock makes it thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "terrace/optimizer.h"

namespace terrace {

// Of one parameter or array: a transfer that takes longer is stuck.
inline constexpr absl::Duration kTransferPatience = absl::Hours(1);

// Every call is given the optimizer that is open, one until End().
class StateTransfer {
 public:
  // As StateBinding's, which see. Read ends a load, Write what is read,
  // and SetSteps commits a load, or sets the steps where none was begun. After
  // a load that something else ended, Write and SetSteps are
  // FailedPrecondition: what it had written is gone, and the rest of it must
  // not pass for the whole.
  absl::Status Read(OffloadedOptimizer& optimizer, int64_t parameter,
                    int64_t offset, const at::Tensor& master,
                    const at::Tensor& first_moment,
                    const at::Tensor& second_moment);
  absl::Status Write(OffloadedOptimizer& optimizer, int64_t parameter,
                     int64_t offset, const at::Tensor& master,
                     const at::Tensor& first_moment,
                     const at::Tensor& second_moment);
  absl::Status SetSteps(OffloadedOptimizer& optimizer, int64_t step,
                        const std::vector<int64_t>& steps);
  void EndReading() { reader_.reset(); }

  // Before any other use of the optimizer, and before it goes.
  void End();
  // The optimizer has all the state that it is to have: it was opened or reset,
  // or a load of another kind is done. A load may begin.
  void Renew() { cut_off_ = false; }
  // In a forked child, which can end nothing: both are leaked.
  void Leak();

 private:
  std::unique_ptr<StateReader> reader_;
  std::unique_ptr<StateWriter> writer_;
  bool cut_off_ = false;  // End() came before the writer's Commit
};

}  // namespace terrace
