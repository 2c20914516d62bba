// Tensors that autograd saves in forward for backward are below in between.
// Each is managed as it is saved, under a number that says where in the step
// that is, and ends with its last user, which is as a rule its use in backward.
//
// The trace of the step before says when each tensor is needed. In the first
// step backward is expected to use them in the reverse order.
//
// The class is thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/threads/lock_order.h"
#include "libtorch/hook/life/saving_number.h"

namespace terrace {

class ManagedStorage;
class ManagedStorages;

class SavedTensors {
 public:
  explicit SavedTensors(std::shared_ptr<ManagedStorages> storages);
  ~SavedTensors();
  SavedTensors(const SavedTensors&) = delete;
  SavedTensors& operator=(const SavedTensors&) = delete;

  // Begin, Add and Use do what Hook::BeginSaving, ManageSaved and UseSaved
  // describe. After End no tensor is added any more; a second End does nothing.
  void Begin(int64_t most_bytes);
  absl::StatusOr<bool> Add(const at::Tensor& tensor);
  void Use(const at::Tensor& tensor);
  void End();
  // The numbers begin again at 0.
  void BeginStep();
  // Returns the first error of Add.
  absl::Status first_error() const;

 private:
  struct Saved {
    int64_t number = 0;
    std::weak_ptr<ManagedStorage> storage;
  };

  std::string NameOf(int64_t number) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Free memory of the heap lies in parts, between small tensors that stay, so
  // that the heap would grow by much of what went below. Each time that so many
  // bytes were saved or used (kTrimBytes), its free pages go back to the
  // system.
  void Trim(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<ManagedStorages> storages_;
  mutable OrderedMutex mutex_{LockRank::kSavedTensors};
  int64_t most_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: not in Begin to End
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<SavingNumber> hook_ ABSL_GUARDED_BY(mutex_);  // from Begin on
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 0;  // the next number
  // The entries are in the order of their numbers. Add drops those at the end
  // whose storages have died.
  std::vector<Saved> saved_ ABSL_GUARDED_BY(mutex_);
  int64_t untrimmed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
