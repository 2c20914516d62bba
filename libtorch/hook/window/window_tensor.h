// A tensor whose bytes come and go: what a ByteWindow keeps of it, and what its
// storage is told. The subclass is the storage's side; it knows no I/O, and the
// window knows no storage.
//
// Install, TakeAway, Refuse, Forgive and MoveOut are called by the thread whose
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
  // Its bytes are where its owner has them until ByteWindow::Fill.
  WindowTensor(std::string name, int64_t size_bytes)
      : name_(std::move(name)), size_bytes_(size_bytes) {}
  virtual ~WindowTensor() = default;
  WindowTensor(const WindowTensor&) = delete;
  WindowTensor& operator=(const WindowTensor&) = delete;

  const std::string& name() const { return name_; }
  int64_t size_bytes() const { return size_bytes_; }
  // What is said of it: "terrace: 'h.weight' 12.3 MiB: it is in use".
  std::string Told(absl::string_view what) const;
  ResidencyWord& word() { return word_; }
  const ResidencyWord& word() const { return word_; }

  // By a thread that has it pinned: an operation writes to it. Without that it
  // is clean, and leaves without being written.
  void MarkWritten() { written_.store(true, std::memory_order_relaxed); }
  // Its storage has died or has other bytes now: it is not evicted any more,
  // and removed as soon as it is not pinned.
  void MarkGone() { gone_.store(true, std::memory_order_release); }
  // Before ByteWindow::Add, of a tensor that lives for a part of a step: where
  // it comes in the step. The trace takes that of the step before with the same
  // number for it. And it is not kept beside the window when it leaves, but
  // goes below at once, so that there is room for the next.
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
  // It was refused for want of room, and may be had again where there is some.
  bool lacked_room() const { return lacked_room_.load(); }
  // A pin of it is of what computes nothing now: of an operation that waits, or
  // of the program. Between the pin and its end.
  void BeginWaiting() { waiting_pins_.fetch_add(1); }
  void EndWaiting() { waiting_pins_.fetch_sub(1); }
  bool is_computed_with() const {
    const uint32_t pins = word_.pins();  // before the others
    return pins > waiting_pins_.load();
  }
  // Its bytes are in memory beside the Runtime's (spill.h). By a thread that
  // has it pinned.
  bool is_spilled() const {
    return is_spilled_.load(std::memory_order_acquire);
  }

 protected:
  // The bytes are there from now on. False: there is no storage for them.
  virtual bool Install(std::byte* data) = 0;
  // They are not used any more. False: the storage has others meanwhile.
  virtual bool TakeAway() = 0;
  // Every use fails with this text, until Forgive; false there: for ever.
  virtual void Refuse(const std::string& text) = 0;
  virtual bool Forgive() = 0;
  // Into memory of the storage's own. ResourceExhausted: there is none.
  virtual absl::Status MoveOut() = 0;

 private:
  bool is_here() const { return pin_.valid() || spilled_ != nullptr; }
  // What was written to it since it came; it leaves now. By the thread whose
  // word it is.
  enum class Writes : uint8_t { kNone, kMarked, kUnmarked };
  Writes TakeWrites();
  // What the trace calls it; those with a number are below 0.
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
  std::atomic<int64_t> blocked_ns_ = 0;  // that something waited for it
  int64_t number_ = -1;
  bool is_numbered_ = false;  // in the trace: no other alive has its number
  std::atomic<bool> is_spilled_ = false;
  std::atomic<bool> lacked_room_ = false;
  // By the thread whose word it is.
  TensorId id_;
  Pin pin_;                // while it is resident, and not spilled
  SpilledMemory spilled_;  // while it is spilled
  std::unique_ptr<RequestQueue> fetch_;  // while it is ready
  uint64_t fingerprint_ = 0;             // of what was fetched
  bool is_checked_ = false;              // `fingerprint_` is set
  bool never_clean_ = false;             // it was written to without a mark
};

}  // namespace terrace
