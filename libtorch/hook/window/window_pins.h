// WindowPins has what a window has pinned of its Runtime: it takes pins for
// tensors, ends them, and says which tensor leaves where the window is over its
// bytes.
//
// Each tensor that the window has, or fetches ahead of need, counts in its
// room. A tensor that leaves gives the room back, and its word is given back
// too.
//
// WindowPins is thread-safe. Where a function says so, the tensor's word is the
// caller's (residency_word.h). The Runtime outlives the object, or its Shut.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "libtorch/hook/window/use_order.h"
#include "libtorch/hook/window/window_meter.h"
#include "libtorch/hook/window/window_queue.h"
#include "libtorch/hook/window/window_room.h"
#include "libtorch/hook/window/window_tensor.h"
#include "terrace/runtime.h"

namespace terrace {

// Returns whether a fetch's error says that tensors in use left no room, and
// that nothing has failed.
bool IsNoRoom(const absl::Status& status);

// Who wants tensors in memory, and may wait for that.
struct FetchAsker {
  enum class Caller : uint8_t {
    kOperation,
    kLease,   // it may last, and takes nothing beyond the budget
    kCopy,    // the library's own
    kBeside,  // a copy that is no use by the model
  };
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
  WindowPins(Runtime& runtime, int64_t window_bytes, int64_t most_bytes,
             int64_t beyond_bytes)
      : beyond_bytes_(beyond_bytes),
        room_(window_bytes, most_bytes),
        queue_(runtime, [this](WindowTensor& tensor) { Evict(tensor); }) {}

  WindowRoom& room() { return room_; }
  const WindowRoom& room() const { return room_; }
  UseOrder& order() { return order_; }
  WindowQueue& queue() { return queue_; }
  WindowMeter& meter() { return meter_; }
  const WindowMeter& meter() const { return meter_; }
  int64_t beyond_bytes() const { return beyond_bytes_; }
  // The number of tensors that are not here.
  int64_t away() const { return away_.load(std::memory_order_relaxed); }

  // These are cold from now on, and without contents.
  void Add(absl::Span<WindowTensor* const> tensors);
  // Takes a tensor out that is never asked for again; its word is the caller's.
  void Remove(WindowTensor& tensor);

  // Takes room for tensors whose words are the caller's, by evictions, or
  // beyond the window's bytes. Those that were fetched ahead have it already.
  void Claim(const Tensors& tensors);
  // Takes room for a fetch ahead of need, where evictions by this rule make it.
  bool ClaimAhead(WindowTensor& tensor, const UseOrder::VictimRule& rule);
  void GiveRoom(const WindowTensor& tensor);

  struct Brought {
    std::vector<Pin> pins;
    WaitCause cause = WaitCause::kNone;
  };
  // Takes pins for tensors whose room is claimed; their words are in loading.
  absl::StatusOr<Brought> Take(const Tensors& tensors, Access access,
                               const FetchAsker& asker, absl::Time deadline);
  // Gives a tensor its bytes; its word is the caller's.
  absl::Status Install(WindowTensor& tensor, Pin pin);

  // Evicts a tensor whose word is the caller's, in evicting, and gives the word
  // back. It waits for nothing.
  void Evict(WindowTensor& tensor);
  // Evicts the tensor that is used last, of those that the rule allows. Returns
  // false when there is none.
  bool EvictOne(const UseOrder::VictimRule& rule = {});
  // Evicts until the window is back within its bytes, as far as pins allow.
  void Trim();

 private:
  void End(WindowTensor& tensor, bool is_written);

  const int64_t beyond_bytes_;
  WindowRoom room_;
  UseOrder order_;
  WindowMeter meter_;
  std::atomic<int64_t> away_ = 0;
  std::atomic<int64_t> used_beyond_ = 0;  // of groups beyond the budget
  WindowQueue queue_;                     // ends first, as its thread evicts
};

}  // namespace terrace
