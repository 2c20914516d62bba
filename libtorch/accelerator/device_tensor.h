// A tensor whose bytes are on a device while operations use them, and below
// otherwise. Owned by what manages it; a DeviceWindow moves it.
//
// Who has the word (residency_word.h) touches what has no atomic; an operation
// has it pinned. Residency on a device is in the order of streams: kResident
// says that what a stream is given from then on finds the bytes, and not that
// they are there.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "libtorch/accelerator/stream_uses.h"
#include "libtorch/accelerator/streamed_device.h"
#include "libtorch/hook/window/residency_word.h"

namespace terrace {

class DeviceTensor {
 public:
  // Resident, in a block of the home stream's memory, and nothing below yet.
  DeviceTensor(std::string name, int64_t size_bytes, StreamId home,
               std::unique_ptr<BlockPlace> place,
               std::unique_ptr<BytesBelow> below)
      : name_(std::move(name)),
        size_bytes_(size_bytes),
        home_(home),
        place_(std::move(place)),
        below_(std::move(below)) {}

  const std::string& name() const { return name_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Of each of its blocks: what a program allocated on a stream is another's
  // to use only as the program says, also after it was brought again.
  StreamId home() const { return home_; }
  ResidencyWord& word() { return word_; }
  StreamUses& uses() { return uses_; }
  BlockPlace& place() { return *place_; }
  BytesBelow& below() { return *below_; }

  // The bytes below are older. Set under a pin, taken off with the word.
  bool is_written() const { return is_written_.load(); }
  void SetWritten(bool is_written) { is_written_.store(is_written); }
  // A count of the window's; of an order, no more.
  int64_t last_use() const { return last_use_.load(std::memory_order_relaxed); }
  void SetLastUse(int64_t use) {
    last_use_.store(use, std::memory_order_relaxed);
  }
  // Its storage throws though its bytes may be here.
  bool Unrefuse() { return is_refused_.load() && is_refused_.exchange(false); }
  void SetRefused() { is_refused_.store(true); }

  // With the word. Its bytes count as the window's.
  bool is_held() const { return is_held_; }
  void SetHeld(bool is_held) { is_held_ = is_held; }
  // With the word. The last copy to memory: what reads there comes after it.
  void SetWrittenBack(std::shared_ptr<DeviceEvent> event) {
    written_back_ = std::move(event);
  }
  std::shared_ptr<DeviceEvent> TakeWrittenBack() {
    return std::exchange(written_back_, nullptr);
  }
  // Why it is kFailed.
  const absl::Status& failure() const { return failure_; }
  void SetFailure(absl::Status failure) { failure_ = std::move(failure); }

 private:
  const std::string name_;
  const int64_t size_bytes_;
  const StreamId home_;
  const std::unique_ptr<BlockPlace> place_;
  const std::unique_ptr<BytesBelow> below_;
  ResidencyWord word_{Residency::kResident};
  StreamUses uses_;
  std::atomic<bool> is_written_ = true;
  std::atomic<bool> is_refused_ = false;
  std::atomic<int64_t> last_use_ = 0;
  bool is_held_ = false;
  std::shared_ptr<DeviceEvent> written_back_;
  absl::Status failure_;
};

}  // namespace terrace
