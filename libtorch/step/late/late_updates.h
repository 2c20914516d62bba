// The updates of one late step: a thread that drives them to their end, and
// what they refer to.
//
//   auto updates = LateUpdates::Begin(*optimizer, std::move(step));
//   ...                                  // operations wait by themselves
//   absl::Status status = (*updates)->Wait();
//   if (!status.ok()) status = (*updates)->Retry();
//
// Until Wait or Retry has returned OK, or the object is gone, no other method
// of the optimizer may be called. After a failure parameters and gradients stay
// as they are, and operations that take a parameter that is not updated, or
// write its gradient, throw; where LibTorch cannot take that back (before 2.12)
// the parameters and gradients that were stepped are given new storages over
// the same memory once the updates have succeeded or are given up, and views
// that were made of them before go on throwing. What is leased as it is given
// up is refused until the lease has ended.
//
// Thread-compatible. The optimizer must outlive it.
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

// One parameter of a step, and what the addresses of its data are of.
struct LateParameter {
  int place = 0;
  std::string name;  // unless a hook has its bytes, and calls it otherwise
  at::Tensor parameter;
  at::Tensor values;    // its own as the step began, whatever it is given since
  at::Tensor in_order;  // a copy that is updated in its place; or undefined
  at::Tensor gradient;  // what is read; undefined where there are no elements
};

struct LateArguments {
  std::vector<AdamOptions> groups;
  double loss_scale = 1;
  // Else those of the optimizer's options.
  std::optional<double> max_gradient_norm;
  std::optional<bool> skip_nonfinite;
  // Updates that take longer are stuck, and end as DeadlineExceeded.
  absl::Duration patience = absl::Hours(1);
  std::vector<int> order;  // as parameters are expected to be used
  std::vector<ParameterData> data;
  std::vector<LateParameter> parameters;
  // Where some of `data` are: gradients are dropped there as they are used.
  // Null: all are in memory. It outlives the step.
  OffloadedDevice* offloaded = nullptr;
  // What a program calls to try again what failed, for messages.
  std::string retry = "Flush()";
};

class LateUpdates {
 public:
  // Blocks until the norm is known, as OffloadedOptimizer::StartLate. Null: the
  // step has ended; its parameters may have been skipped.
  static absl::StatusOr<std::unique_ptr<LateUpdates>> Begin(
      OffloadedOptimizer& optimizer, LateArguments arguments);
  // Waits for the thread. What failed is given up.
  ~LateUpdates();
  LateUpdates(const LateUpdates&) = delete;
  LateUpdates& operator=(const LateUpdates&) = delete;

  // Blocks until all are updated, or one has failed. Again: the same.
  absl::Status Wait();
  // Whether they have ended by then: Wait would not block.
  bool AwaitEnd(absl::Time deadline);
  // Whether every parameter was stepped, and what is missing is the end of it:
  // values that are to be given back, storages that are still refused. No other
  // step of the optimizer has begun since.
  bool is_stepped() const {
    return is_stepped_ && optimizer_.step() == step_number_;
  }
  // Those that failed once more. At the deadline they have failed again, with
  // DeadlineExceeded.
  absl::Status Retry(absl::Time deadline = absl::InfiniteFuture());

  // Once it has ended: parameters in the order in which they were used, then
  // the others as before.
  std::vector<int> order() const;
  // How long operations, and what waits for all, have waited.
  absl::Duration waited() const { return pending_->waited(); }

 private:
  LateUpdates(OffloadedOptimizer& optimizer, LateArguments arguments);

  absl::StatusOr<std::unique_ptr<LateStep>> Start(absl::Time deadline);
  // The storages that are waited for, without anyone who does.
  void Collect();
  void Listen();
  // On the thread, or on that of a Retry.
  absl::Status Drive(LateStep& step);
  // On this thread, unless one was begun.
  void RunHere();
  void Follow(LateStep& step);
  // Nothing of theirs is read or written any more.
  void SetStepped(absl::Span<const int> places);
  // Of those that are stepped: values out of order go back to their tensors.
  // What cannot be given back stays here, and pending.
  absl::Status CopyBack();
  absl::Status CopyBack(LateParameter& parameter);
  // Once all are stepped.
  absl::Status Finish();
  void Run();
  // Storages that were refused are as before, or refused still.
  absl::Status Restore();
  // Those that are refused still will be, as soon as they are not in use.
  void RestoreLater();

  OffloadedOptimizer& optimizer_;
  LateArguments arguments_;
  const std::shared_ptr<PendingStorages> pending_;
  absl::flat_hash_map<int, LateParameter*> copied_;  // by place, with in_order
  std::vector<LateParameter*> unreturned_;           // of these, stepped
  std::unique_ptr<LateStep> step_;                   // of the thread
  std::thread thread_;
  // Once the thread has ended.
  absl::Status status_;
  bool is_stepped_ = false;
  int64_t step_number_ = 0;
};

}  // namespace terrace
