// A customer of a Runtime, through its public interface alone: tensors of one
// size, each of which holds a byte of its own all over, and a queue for them.
//
//   auto customer = TensorCustomer::Open(options, {.tensors = 6});
//   customer->Fill(0, 7);    // OK: published
//   customer->Check(0);      // OK: it is 7 all over
//
// One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "terrace/runtime.h"

namespace terrace {

struct CustomerOptions {
  int tensors = 6;
  int64_t tensor_bytes = 1 << 20;
  int slots = 2;
  // Of each wait.
  absl::Duration patience = absl::Seconds(60);
};

class TensorCustomer {
 public:
  static absl::StatusOr<std::unique_ptr<TensorCustomer>> Open(
      const Options& options, const CustomerOptions& customer = {}) {
    auto runtime = Runtime::Create(options);
    if (!runtime.ok()) return runtime.status();
    auto opened = std::unique_ptr<TensorCustomer>(
        new TensorCustomer(*std::move(runtime), customer));
    const absl::Status status = opened->Register();
    if (!status.ok()) return status;
    return opened;
  }

  absl::Status Fill(int tensor, uint8_t value) {
    absl::StatusOr<Pin> pin = Take(tensor, Access::kOverwrite);
    if (!pin.ok()) return pin.status();
    std::fill(pin->data().begin(), pin->data().end(), std::byte(value));
    values_[static_cast<size_t>(tensor)] = std::byte(value);
    return absl::OkStatus();
  }

  // Internal: it has other bytes than it was filled with.
  absl::Status Check(int tensor) {
    absl::StatusOr<Pin> pin = Take(tensor, Access::kRead);
    if (!pin.ok()) return pin.status();
    const std::byte value = values_[static_cast<size_t>(tensor)];
    for (size_t i = 0; i < pin->data().size(); ++i) {
      if (pin->data()[i] == value) continue;
      return absl::InternalError(
          absl::StrCat("tensor ", tensor, ", byte ", i, ": ",
                       static_cast<int>(pin->data()[i]), ", and not ",
                       static_cast<int>(value)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Pin> Take(int tensor, Access access) {
    absl::Status pushed = queue_->Push(
        {{tensors_[static_cast<size_t>(tensor)], access}}, 0, Late());
    if (!pushed.ok()) return pushed;
    absl::StatusOr<Ready> ready = queue_->Next(Late());
    if (!ready.ok()) return ready.status();
    if (!ready->pins.ok()) return ready->pins.status();
    return std::move(ready->pins->front());
  }

  // The path that a tensor was given a home on.
  int home(int tensor) const { return homes_[static_cast<size_t>(tensor)]; }
  // The tensors of a path.
  std::vector<int> OfPath(int path) const {
    std::vector<int> tensors;
    for (int i = 0; i < static_cast<int>(homes_.size()); ++i) {
      if (home(i) == path) tensors.push_back(i);
    }
    return tensors;
  }

  Runtime& runtime() { return *runtime_; }
  RequestQueue& queue() { return *queue_; }

  absl::Status Close(absl::Duration patience) {
    queue_.reset();
    return runtime_->Close(absl::Now() + patience);
  }

 private:
  TensorCustomer(std::unique_ptr<Runtime> runtime,
                 const CustomerOptions& options)
      : options_(options), runtime_(std::move(runtime)) {}

  absl::Time Late() const { return absl::Now() + options_.patience; }

  absl::Status Register() {
    values_.resize(static_cast<size_t>(options_.tensors));
    for (int i = 0; i < options_.tensors; ++i) {
      const Stats before = runtime_->GetStats();
      TensorSpec spec;
      spec.name = absl::StrCat("tensor ", i);
      spec.size_bytes = options_.tensor_bytes;
      const absl::StatusOr<TensorId> id = runtime_->Register(spec);
      if (!id.ok()) return id.status();
      tensors_.push_back(*id);
      homes_.push_back(HomeSince(before));
    }
    auto queue =
        runtime_->OpenQueue(options_.tensor_bytes, options_.slots, Late());
    if (!queue.ok()) return queue.status();
    queue_ = *std::move(queue);
    return absl::OkStatus();
  }

  int HomeSince(const Stats& before) const {
    const Stats now = runtime_->GetStats();
    for (size_t i = 0; i < now.paths().size(); ++i) {
      if (now.paths()[i].used_bytes > before.paths()[i].used_bytes) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }

  const CustomerOptions options_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<TensorId> tensors_;
  std::vector<int> homes_;
  std::vector<std::byte> values_;
  std::unique_ptr<RequestQueue> queue_;
};

}  // namespace terrace
