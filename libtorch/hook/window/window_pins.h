// WindowPins has what a window has pinned of its Runtime: it takes pins for
// tensors, and ends them. Each tensor that is here counts in the window's room.
// A device's pin ends later than its tensor leaves, when the device has done
// what it was given with the bytes (later_ends.h).
//
// WindowPins is thread-safe. Where a function says so, the tensor's word is the
// caller's (residency_word.h). The Runtime outlives the object, or its Shut.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "libtorch/hook/window/later_ends.h"
#include "libtorch/hook/window/window_meter.h"
#include "libtorch/hook/window/window_queue.h"
#include "libtorch/hook/window/window_room.h"
#include "libtorch/hook/window/window_tensor.h"
#include "terrace/runtime.h"

namespace terrace {

// Returns whether a fetch's error says that tensors in use left no room, and
// that nothing has failed.
bool IsNoRoom(const absl::Status& status);

// Returns where a pin's bytes are: as their device has it, or the CPU.
inline std::byte* AddressOf(const Pin& pin) {
  return reinterpret_cast<std::byte*>(pin.address());
}

// Who wants tensors in memory, and may wait for that.
struct FetchAsker {
  enum class Caller : uint8_t {
    kOperation,
    kLease,   // it may last, and takes nothing beyond the budget
    kCopy,    // the library's own
    kBeside,  // a copy for an update that runs beside the model
  };
  // Its uses' lane: the program's own are the model's.
  static UseLane LaneOf(Caller caller) {
    return caller == Caller::kOperation || caller == Caller::kLease
               ? UseLane::kOperations
               : UseLane::kCopies;
  }
  Caller caller = Caller::kOperation;
  absl::string_view operation = {};  // its name
  int64_t operation_bytes = 0;       // what it takes of the window in all
  // Tensors that the calling thread has pinned, and uses until it has those
  // that it asks for.
  absl::Span<WindowTensor* const> in_use = {};
};

class WindowPins {
 public:
  using Tensors = absl::InlinedVector<WindowTensor*, 6>;

  // Groups have at most `beyond_bytes` beyond the budget at a time.
  WindowPins(Runtime& runtime, std::string tier, int64_t window_bytes,
             int64_t most_bytes, int64_t beyond_bytes)
      : runtime_(runtime),
        // Nothing of a device is beyond its budget.
        beyond_bytes_(tier.empty() ? beyond_bytes : 0),
        room_(window_bytes, most_bytes),
        queue_(runtime, std::move(tier), window_bytes,
               [this](WindowTensor& tensor) { Evict(tensor); }) {}

  WindowRoom& room() { return room_; }
  const WindowRoom& room() const { return room_; }
  WindowQueue& queue() { return queue_; }
  WindowMeter& meter() { return meter_; }
  const WindowMeter& meter() const { return meter_; }
  const LaterEnds& later() const { return *later_; }
  int64_t beyond_bytes() const { return beyond_bytes_; }
  // Takes a tensor out that is never asked for again, and has the Runtime
  // forget it; its word is the caller's.
  void Remove(WindowTensor& tensor);

  struct Brought {
    std::vector<Pin> pins;
    WaitCause cause = WaitCause::kNone;
    int64_t ahead = 0;  // of these, read before they were asked for
  };
  // Takes pins for tensors whose words are in loading.
  absl::StatusOr<Brought> Take(const Tensors& tensors, Access access,
                               const FetchAsker& asker, absl::Time deadline);
  // Gives a tensor its bytes; its word is the caller's.
  absl::Status Install(WindowTensor& tensor, Pin pin);

  // Ends a pin that the tensor was not given; its word is the caller's.
  void GiveBack(WindowTensor& tensor, Pin pin);

  // Evicts a tensor whose word is the caller's, in evicting, and gives the word
  // back. It waits for nothing.
  void Evict(WindowTensor& tensor);

  // The Runtime is not used any more, but for what is not over by then. There
  // are no tensors. DeadlineExceeded: something was not.
  absl::Status Shut(absl::Time deadline);
  // Waits until all pins have ended whose tensors have left.
  void AwaitEnds(absl::Time deadline) { later_->Await(deadline); }

  // A tensor failed, and its word is the caller's. TakeFailed returns all that
  // did, with their words in loading.
  void NoteFailed(WindowTensor& tensor);
  std::vector<WindowTensor*> TakeFailed();

 private:
  // Ends the tensor's pin, if it has one, as soon as nothing uses its bytes,
  // and then has the Runtime forget the tensor if it `is_removed`.
  void End(WindowTensor& tensor, bool is_written, bool is_removed = false);

  Runtime& runtime_;
  const std::shared_ptr<LaterEnds> later_ = std::make_shared<LaterEnds>();
  const int64_t beyond_bytes_;
  WindowRoom room_;
  WindowMeter meter_;
  std::atomic<int64_t> used_beyond_ = 0;  // of groups beyond the budget
  Mutex mutex_;
  absl::flat_hash_set<WindowTensor*> failed_ ABSL_GUARDED_BY(mutex_);
  WindowQueue queue_;  // ends first, as its thread evicts
};

}  // namespace terrace
