// Any medium, with an error at a chosen call; it also tells what was asked of
// it, and lets a test act while a piece is under way.
//
//   FaultMedium medium(vector_medium);
//   medium.Fail(3, absl::DataLossError("..."));    // the fourth call from here
//   medium.FailAll(IoDirection::kWrite, absl::UnavailableError("..."));
//   medium.OnCall([&](const MediumCall& call) { transport.Cancel(...); });
//
// A call that fails moves nothing. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aio/engine.h"
#include "base/mutex.h"
#include "tiers/medium.h"

namespace terrace {

struct MediumCall {
  IoDirection direction = IoDirection::kRead;
  int64_t offset = 0;
  int64_t size_bytes = 0;
};

class FaultMedium final : public Medium {
 public:
  // `medium` outlives it.
  explicit FaultMedium(Medium& medium) : medium_(medium) {}
  explicit FaultMedium(std::shared_ptr<Medium> medium)
      : owned_(std::move(medium)), medium_(*owned_) {}

  // The call after `calls` others fails with `error`, once.
  void Fail(int64_t calls, absl::Status error) {
    MutexLock lock(mutex_);
    fails_at_ = static_cast<int64_t>(calls_.size()) + calls;
    error_ = std::move(error);
  }
  // All calls of that direction from here on.
  void FailAll(IoDirection direction, absl::Status error) {
    MutexLock lock(mutex_);
    refusal(direction) = std::move(error);
  }
  void Clear() {
    MutexLock lock(mutex_);
    fails_at_ = -1;
    refusals_ = {};
  }
  // Runs in each call, before any byte moves. Not while calls are under way.
  void OnCall(std::function<void(const MediumCall&)> run) {
    on_call_ = std::move(run);
  }
  std::vector<MediumCall> calls() const {
    MutexLock lock(mutex_);
    return calls_;
  }
  int64_t failed_calls() const {
    MutexLock lock(mutex_);
    return failed_calls_;
  }

  const std::string& name() const override { return medium_.name(); }
  int64_t size_bytes() const override { return medium_.size_bytes(); }
  std::vector<Extent> bad_ranges() const override {
    return medium_.bad_ranges();
  }
  absl::Status Read(int64_t offset, absl::Span<std::byte> to) override {
    const absl::Status status = Enter(IoDirection::kRead, offset, to.size());
    return status.ok() ? medium_.Read(offset, to) : status;
  }
  absl::Status Write(int64_t offset,
                     absl::Span<const std::byte> from) override {
    const absl::Status status = Enter(IoDirection::kWrite, offset, from.size());
    return status.ok() ? medium_.Write(offset, from) : status;
  }
  absl::Status Remove() override { return medium_.Remove(); }

 private:
  absl::Status Enter(IoDirection direction, int64_t offset, size_t size) {
    const MediumCall call = {direction, offset, static_cast<int64_t>(size)};
    absl::Status status;
    {
      MutexLock lock(mutex_);
      status = refusal(direction);
      if (static_cast<int64_t>(calls_.size()) == fails_at_) status = error_;
      if (!status.ok()) ++failed_calls_;
      calls_.push_back(call);
    }
    if (on_call_) on_call_(call);
    return status;
  }

  absl::Status& refusal(IoDirection direction)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return refusals_[static_cast<size_t>(direction)];
  }

  const std::shared_ptr<Medium> owned_;  // null: its maker's
  Medium& medium_;
  std::function<void(const MediumCall&)> on_call_;
  mutable Mutex mutex_;
  std::vector<MediumCall> calls_ ABSL_GUARDED_BY(mutex_);
  int64_t fails_at_ ABSL_GUARDED_BY(mutex_) = -1;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  // Of all reads, and of all writes.
  std::array<absl::Status, 2> refusals_ ABSL_GUARDED_BY(mutex_);
  int64_t failed_calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
