// A WindowTensor is a tensor whose bytes come and go. It has what a ByteWindow
// keeps of the tensor, and tells the storage what happens to the bytes. The
// subclass is the storage's side: it knows no I/O, and the window knows no
// storage.
//
// Install, TakeAway, Refuse and MoveOut are called by the thread whose
// word() it is at that time, never with a lock held.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libtorch/hook/window/residency_word.h"
#include "terrace/pin.h"
#include "terrace/request.h"
#include "terrace/tensor.h"

namespace terrace {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using SpilledMemory = std::unique_ptr<std::byte, FreeMemory>;

class WindowTensor {
 public:
  // The tensor's bytes are where its owner has them until ByteWindow::Fill.
  WindowTensor(std::string name, int64_t size_bytes)
      : name_(std::move(name)), size_bytes_(size_bytes) {}
  virtual ~WindowTensor() = default;
  WindowTensor(const WindowTensor&) = delete;
  WindowTensor& operator=(const WindowTensor&) = delete;

  const std::string& name() const { return name_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Returns a message about the tensor, such as "terrace: 'h.weight' 12.3 MiB:
  // it is in use".
  std::string Told(absl::string_view what) const;
  ResidencyWord& word() { return word_; }
  const ResidencyWord& word() const { return word_; }

  // Marks that an operation writes to the tensor, which the calling thread has
  // pinned. A tensor without the mark is clean, and leaves without being
  // written.
  void MarkWritten() { written_.store(true, std::memory_order_relaxed); }
  // Marks that the storage has died or has other bytes now: the tensor is not
  // evicted any more, and is removed as soon as it is not pinned.
  void MarkGone() { gone_.store(true, std::memory_order_release); }
  // Says where in the step a tensor comes that lives for a part of a step;
  // called before ByteWindow::Add. The trace takes the tensor of the step
  // before that had the same number for this one. When the tensor leaves, it is
  // not kept beside the window but goes below at once, so that there is room
  // for the next.
  void SetNumber(int64_t number) { number_ = number; }
  int64_t number() const { return number_; }  // -1: it has none
  absl::Duration blocked() const {
    return absl::Nanoseconds(blocked_ns_.load(std::memory_order_relaxed));
  }
  void NoteBlocked(absl::Duration blocked) {
    blocked_ns_.fetch_add(absl::ToInt64Nanoseconds(blocked),
                          std::memory_order_relaxed);
  }
  bool gone() const { return gone_.load(std::memory_order_acquire); }
  // Between BeginWaiting and EndWaiting the holder of one of the pins computes
  // nothing: it is an operation that waits, or the program. The holder calls
  // both between the pin and its end.
  void BeginWaiting() {
    waiting_pins_.fetch_add(1);
    RoomNews::Tell();  // who waits for its room may wait in vain
  }
  void EndWaiting() { waiting_pins_.fetch_sub(1); }
  bool is_computed_with() const {
    const uint32_t pins = word_.pins();  // read before the waiting pins
    return pins > waiting_pins_.load();
  }
  // Whether the tensor's bytes are in memory beside the Runtime's (spill.h). A
  // thread that has the tensor pinned may rely on the answer.
  bool is_spilled() const {
    return is_spilled_.load(std::memory_order_acquire);
  }

 protected:
  // Gives the storage its bytes, which are at `data` from now on. Returns false
  // when there is no storage for them.
  virtual bool Install(std::byte* data) = 0;
  // Takes the bytes away from the storage. Returns false when the storage is
  // gone or has other bytes meanwhile.
  virtual bool TakeAway() = 0;
  // After Refuse every use of the storage fails with `text`, until Install.
  virtual void Refuse(const std::string& text) = 0;
  // Moves the bytes into memory of the storage's own. Returns ResourceExhausted
  // when there is none.
  virtual absl::Status MoveOut() = 0;

 private:
  bool is_here() const { return pin_.valid() || spilled_ != nullptr; }
  // Returns whether the tensor, which leaves now, was written to since it came,
  // and whether that was marked. Only the thread whose word it is calls this.
  enum class Writes : uint8_t { kNone, kMarked, kUnmarked };
  Writes TakeWrites();
  // The trace knows the tensor by this key; the keys of numbers are below 0.
  int64_t key() const { return is_numbered_ ? -2 - number_ : id_.value; }

  friend class ByteWindow;
  friend class Spill;
  friend class UseOrder;

  const std::string name_;
  const int64_t size_bytes_;
  ResidencyWord word_{Residency::kCold};
  std::atomic<uint64_t> last_use_ = 0;  // by UseOrder's clock
  std::atomic<bool> written_ = false;   // since the last eviction
  std::atomic<bool> gone_ = false;
  std::atomic<uint32_t> waiting_pins_ = 0;
  std::atomic<int64_t> blocked_ns_ = 0;  // for which threads waited for it
  int64_t number_ = -1;
  bool is_numbered_ = false;  // its number is its key, as no other has it now
  std::atomic<bool> is_spilled_ = false;
  // Only the thread whose word it is changes these members.
  TensorId id_;
  Pin pin_;                // while it is resident, and not spilled
  SpilledMemory spilled_;  // while it is spilled
  std::unique_ptr<RequestQueue> fetch_;  // while it is ready
  uint64_t fingerprint_ = 0;             // of what was fetched
  bool is_checked_ = false;              // `fingerprint_` is set
  bool never_clean_ = false;             // it was written to without a mark
};

}  // namespace terrace
