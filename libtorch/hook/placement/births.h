// The births of one thread: which memory an operation has taken for tensors,
// and which of these tensors it hands out. It watches the outermost operations
// of its thread while a scope with an owner is open there, by an observer of
// that thread alone, and what is within them, and a backward pass, as a part of
// them.
//
// An object belongs to its thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "libtorch/hook/placement/newborn_owner.h"

namespace terrace {

class Births {
 public:
  static Births& OfThisThread();
  ~Births();

  // Between these two calls operations are watched.
  void BeginWatching();
  void EndWatching();
  // From here on new tensors are this one's; null: nobody's.
  void SetOwner(std::shared_ptr<NewbornOwner> owner) {
    owner_ = std::move(owner);
  }
  // Memory for a tensor was taken.
  void Note(const void* address) { taken_.push_back(address); }

 private:
  Births() = default;

  static std::unique_ptr<at::ObserverContext> OnStart(
      const at::RecordFunction& function);
  static void OnEnd(const at::RecordFunction& function,
                    at::ObserverContext* context);

  void Begin(const at::RecordFunction& function);
  void End(const at::RecordFunction& function);
  bool WasTaken(const at::Tensor& tensor) const;
  // Which the operation writes of those that wait for that. One that it only
  // reads waits no more.
  void FindWritten(const at::RecordFunction& function);

  std::shared_ptr<NewbornOwner> owner_;
  int watchers_ = 0;
  std::optional<at::CallbackHandle> observer_;  // while there are any
  int depth_ = 0;  // of operations and nodes of backward
  absl::InlinedVector<const void*, 8> taken_;  // by the outermost operation
  // Of those that had no contents, what the outermost operation writes.
  std::vector<at::Tensor> written_;
};

}  // namespace terrace
