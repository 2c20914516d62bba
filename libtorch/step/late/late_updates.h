// The updates of one late step. A thread drives them to their end, and this
// object keeps the tensors that they read and write.
//
//   auto updates = LateUpdates::Begin(*optimizer, std::move(step));
//   ...                                  // operations wait by themselves
//   absl::Status status = (*updates)->Wait();
//   if (!status.ok()) status = (*updates)->Retry();
//
// Until Wait or Retry has returned OK, or this object is gone, no other method
// of the optimizer may be called. After a failure parameters and gradients stay
// as they are, and operations that take a parameter that is not updated, or
// write its gradient, throw, until the updates have succeeded or are given up.
//
// Thread-compatible. The optimizer must outlive this object.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "libtorch/offloaded_device.h"
#include "libtorch/step/late/pending_storages.h"
#include "terrace/optimizer.h"

namespace terrace {

// One parameter of a step, with the tensors that the addresses of its data
// point into.
struct LateParameter {
  int place = 0;
  std::string name;  // replaced by a hook's name for it, where a hook has one
  at::Tensor parameter;
  at::Tensor values;    // the parameter's data as the step began
  at::Tensor in_order;  // a copy that is updated in its place; or undefined
  at::Tensor gradient;  // the step reads it; undefined without elements
};

struct LateArguments {
  std::vector<AdamOptions> groups;
  double loss_scale = 1;
  // An unset value is that of the optimizer's options.
  std::optional<double> max_gradient_norm;
  std::optional<bool> skip_nonfinite;
  // Updates that take longer are stuck, and end as DeadlineExceeded.
  absl::Duration patience = absl::Hours(1);
  std::vector<int> order;  // in which parameters are expected to be used
  std::vector<ParameterData> data;
  // The gradients of all ranks, where these parameters are a share: only Begin
  // reads them, for the norm.
  absl::Span<const GradientData> norm_gradients;
  std::vector<LateParameter> parameters;
  // The device of those of `data` that are offloaded; gradients are dropped
  // there once they are used. It outlives the step, and is null when all of
  // `data` are in memory.
  OffloadedDevice* offloaded = nullptr;
  // The call by which a program tries failed updates again, for messages.
  std::string retry = "Flush()";
};

class LateUpdates {
 public:
  // Blocks until the norm is known, as OffloadedOptimizer::StartLate does.
  // Returns null when the step has skipped its parameters, and so has ended.
  static absl::StatusOr<std::unique_ptr<LateUpdates>> Begin(
      OffloadedOptimizer& optimizer, LateArguments arguments);
  // Waits for the thread. Updates that failed are given up.
  ~LateUpdates();
  LateUpdates(const LateUpdates&) = delete;
  LateUpdates& operator=(const LateUpdates&) = delete;

  // Blocks until all parameters are updated, or an update has failed. Further
  // calls return the same.
  absl::Status Wait();
  // Returns whether the updates have ended by the deadline, so that Wait would
  // not block.
  bool AwaitEnd(absl::Time deadline);
  // Returns whether every parameter was stepped, and no other step of the
  // optimizer has been counted since. After a failure only the end of the step
  // is missing then: values to be given back.
  bool is_stepped() const {
    return is_stepped_ && optimizer_.step() == step_number_;
  }
  // Tries failed updates once more, on the calling thread. Updates that are not
  // done at the deadline have failed again, with DeadlineExceeded.
  absl::Status Retry(absl::Time deadline = absl::InfiniteFuture());

  // Returns, once the step has ended, parameters in the order in which they
  // were used, then the others as they were before.
  std::vector<int> order() const;
  // How long operations, and threads that wait for the end, have waited.
  absl::Duration waited() const { return pending_->waited(); }

 private:
  LateUpdates(OffloadedOptimizer& optimizer, LateArguments arguments);

  absl::StatusOr<std::unique_ptr<LateStep>> Start(absl::Time deadline);
  // Adds the storages that operations have to wait for to pending_; operations
  // wait for them from Listen on.
  void Collect();
  void Listen();
  // Runs on the thread, or on the thread that calls Retry.
  absl::Status Drive(LateStep& step);
  // Drives the step on the calling thread, unless a thread was started.
  void RunHere();
  // Returns whether threads want parameters that they had not wanted before.
  bool HastenWanted(LateStep& step);
  void FollowStepped(LateStep& step);
  // The parameters at these places and their gradients are not read or written
  // by the step any more.
  void SetStepped(absl::Span<const int> places);
  // Copies the values of stepped parameters back from copies in order. A
  // parameter whose copy fails stays in unreturned_, and pending.
  absl::Status CopyBack();
  absl::Status CopyBack(LateParameter& parameter);
  // Ends the step once all parameters are stepped.
  absl::Status Finish();
  void Run();

  OffloadedOptimizer& optimizer_;
  LateArguments arguments_;
  const std::shared_ptr<PendingStorages> pending_;
  absl::flat_hash_map<int, LateParameter*> copied_;  // by place, with in_order
  std::vector<LateParameter*> unreturned_;           // of copied_, stepped
  std::unique_ptr<LateStep> step_;                   // driven by the thread
  std::thread thread_;
  // These may be read once the thread has ended.
  absl::Status status_;
  bool is_stepped_ = false;
  int64_t step_number_ = 0;
};

}  // namespace terrace
