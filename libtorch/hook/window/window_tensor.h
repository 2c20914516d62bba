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
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libtorch/hook/window/residency_word.h"
#include "terrace/pin.h"
#include "terrace/tensor.h"

namespace terrace {

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
  // called before ByteWindow::Add. The Runtime takes the tensor of the step
  // before that had the same number for this one.
  void SetNumber(int64_t number) { number_ = number; }
  int64_t number() const { return number_; }  // -1: it has none
  // Says that the tensor is a gradient of that parameter, which is added;
  // called before ByteWindow::Add. The Runtime takes the parameter's gradient
  // of the step before for this one.
  void SetGradientOf(const WindowTensor& parameter) {
    gradient_of_ = parameter.id_;
  }
  absl::Duration blocked() const {
    return absl::Nanoseconds(blocked_ns_.load(std::memory_order_relaxed));
  }
  void NoteBlocked(absl::Duration blocked) {
    blocked_ns_.fetch_add(absl::ToInt64Nanoseconds(blocked),
                          std::memory_order_relaxed);
  }
  bool gone() const { return gone_.load(std::memory_order_acquire); }
  // The tensor's pin in the Runtime, by which a use is known there; 0 while the
  // bytes are away.
  uint64_t token() const { return token_.load(std::memory_order_acquire); }

 protected:
  // Copies the bytes from `source`, where the storage has them, to the window's
  // memory.
  virtual absl::Status CopyIn(std::byte* target, const std::byte* source);
  // Calls `end` once nothing uses the bytes any more that was given them: at
  // once, where operations are over when they have ended. A device goes on
  // after that: the Status is the first error of what was waited for, and the
  // bytes are not known where it is not over.
  using AfterUse = absl::AnyInvocable<void(const absl::Status&, bool is_over)>;
  virtual void AfterUses(AfterUse end) {
    end(absl::OkStatus(), /*is_over=*/true);
  }
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
  bool is_here() const { return pin_.valid(); }
  // Returns whether the tensor, which leaves now, was written to since it came,
  // and whether that was marked. Only the thread whose word it is calls this.
  enum class Writes : uint8_t { kNone, kMarked, kUnmarked };
  Writes TakeWrites();
  // The number by which the Runtime knows the tensor in each step.
  int64_t step_number() const;

  friend class ByteWindow;
  friend class GroupFetch;
  friend class WindowPins;
  friend class WindowQueue;

  const std::string name_;
  const int64_t size_bytes_;
  ResidencyWord word_{Residency::kCold};
  std::atomic<bool> written_ = false;  // since the last eviction
  std::atomic<bool> gone_ = false;
  std::atomic<uint64_t> token_ = 0;
  std::atomic<int64_t> blocked_ns_ = 0;  // for which threads waited for it
  int64_t number_ = -1;
  TensorId gradient_of_{-1};
  // Only the thread whose word it is changes these members.
  TensorId id_;
  Pin pin_;                   // while it is resident
  int64_t beyond_bytes_ = 0;  // of a group that came beyond the budget
  uint64_t fingerprint_ = 0;  // of what was fetched
  bool is_checked_ = false;   // `fingerprint_` is set
  bool never_clean_ = false;  // it was written to without a mark
};

}  // namespace terrace
