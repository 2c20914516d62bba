// Tensors that a program's operations make in a scope of placement: the hook
// manages each once it leaves the operation that made it. Where it has no room,
// or cannot be managed, it stays the ordinary tensor that it is.
//
// The class is thread-safe. It lives on with the scopes, and does nothing once
// the hook is closed, or in a forked child.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "base/threads/lock_order.h"
#include "libtorch/hook/placement/placing.h"
#include "terrace/torch/hook.h"

namespace terrace {

class ManagedStorages;

class PlacedTensors final : public NewbornOwner {
 public:
  explicit PlacedTensors(std::shared_ptr<ManagedStorages> storages)
      : storages_(std::move(storages)) {}

  ~PlacedTensors() override;

  // Operations of all threads are seen from now on, also where nothing is
  // managed: they may take what waits for one of its own thread.
  void ListenToUses();
  void Adopt(const at::Tensor& tensor) override;
  PlacedStats stats() const;

 private:
  const std::shared_ptr<ManagedStorages> storages_;
  mutable OrderedMutex mutex_{LockRank::kSavedTensors};
  bool listens_ ABSL_GUARDED_BY(mutex_) = false;
  PlacedStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
