// Tensors that autograd saves in forward for backward, below in between: each
// is managed as it is saved, under a number that says where in the step that
// is, and ends with the last that has it, which is as a rule its use in
// backward.
//
// The trace of the step before says when each is needed. In the first step
// backward is expected to use them in the reverse order.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/threads/lock_order.h"

namespace terrace {

class ManagedStorage;
class ManagedStorages;

class SavedTensors {
 public:
  explicit SavedTensors(std::shared_ptr<ManagedStorages> storages);
  ~SavedTensors();
  SavedTensors(const SavedTensors&) = delete;
  SavedTensors& operator=(const SavedTensors&) = delete;

  // As Hook::BeginSaving, ManageSaved and UseSaved. End: nothing is added any
  // more; again: nothing.
  void Begin(int64_t most_bytes);
  absl::StatusOr<bool> Add(const at::Tensor& tensor);
  void Use(const at::Tensor& tensor);
  void End();
  // Numbers begin again.
  void BeginStep();
  // The first of Add.
  absl::Status first_error() const;

 private:
  struct Saved {
    int64_t number = 0;
    std::weak_ptr<ManagedStorage> storage;
  };

  // Memory of the heap that is free lies in parts, between small tensors that
  // stay, so that it would grow by much of what went below: each time that so
  // much was saved or used, its free pages go back to the system.
  void Trim(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<ManagedStorages> storages_;
  mutable OrderedMutex mutex_{LockRank::kSavedTensors};
  int64_t most_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: it has not begun
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 0;  // number
  // By number; the last one is alive, or none is.
  std::vector<Saved> saved_ ABSL_GUARDED_BY(mutex_);
  int64_t untrimmed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
