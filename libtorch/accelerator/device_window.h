// Which tensors of one device have their bytes there: fetches what operations
// use, evicts what was used longest ago when the budget is reached, and gives
// back what needs no copy when the device's allocator asks (relief_port.h). The
// streams' rules are stream_uses.h's.
//
//   window.Fetch(tensor);                        // pinned by the caller
//   window.Use(tensor, is_written, is_capturing);  // before each operation
//
// Thread-safe. DropClean and the other two of ReliefSource come with the
// allocator's lock held: so no lock of this class is held while a block is
// allocated or ends, and those take none but StreamUses's, which is held across
// no call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "libtorch/accelerator/device_copies.h"
#include "libtorch/accelerator/device_room.h"
#include "libtorch/accelerator/device_tensor.h"
#include "libtorch/accelerator/listed_tensors.h"
#include "libtorch/accelerator/relief_port.h"
#include "libtorch/accelerator/streamed_device.h"

namespace terrace {

struct DeviceWindowStats {
  int64_t held_bytes = 0;  // tensors, on the device
  int64_t peak_bytes = 0;
  int64_t fetches = 0;
  int64_t evictions = 0;
  int64_t clean_drops = 0;   // of those, without a copy
  int64_t relief_drops = 0;  // of those, asked for by the allocator
  absl::Status first_error;  // of a fetch or a copy to memory
};

class DeviceWindow final : public ReliefSource {
 public:
  struct Options {
    // Of tensors, but for what one operation uses at a time.
    int64_t budget_bytes = INT64_MAX;
    // The allocator asks its driver for no less at a time.
    int64_t segment_bytes = 20 << 20;
  };
  // The memory outlives it.
  DeviceWindow(StreamedDevice& memory, const Options& options);
  ~DeviceWindow() override;

  // A resident one, whose bytes on the device are newer than those below.
  absl::Status Add(std::shared_ptr<DeviceTensor> tensor);
  // False: it is pinned, or moves. Else it is as it is for ever, and each
  // Fetch fails.
  bool Remove(DeviceTensor& tensor);
  // Its storage is no more, or has other memory: nothing is left to move. False
  // while it is pinned here or moves. Lets go what an eviction kept of it.
  bool IsGone(DeviceTensor& tensor);

  // Until its bytes are here in the order of its home stream. By one that has
  // it pinned. An error is what its storage throws too, for ever or until it is
  // brought after all.
  absl::Status Fetch(DeviceTensor& tensor);
  // Of one that is pinned and was fetched, on the calling thread's stream.
  absl::Status Use(DeviceTensor& tensor, bool is_written, bool is_capturing);
  bool IsCapturing() override;

  // As many as are beyond the budget.
  void Trim() { MakeRoom(0); }
  // How many went; what is hindered stays (stream_uses.h).
  int64_t EvictAll();
  // Copies what was written to memory, and keeps it here: then it may go at
  // once. The first error; those others are copied all the same.
  absl::Status WriteBack();
  // What collectives have used may go once the device has done them, and what
  // others than tensors had at most becomes the room left for them.
  void BeginStep();

  DeviceWindowStats stats() const;

  bool IsUnderBudget() override;
  int64_t DropClean() override;

 private:
  using Tensors = std::vector<std::shared_ptr<DeviceTensor>>;

  // With the word: the bytes are here.
  absl::Status Bring(DeviceTensor& tensor);
  // For a copy.
  absl::StatusOr<std::unique_ptr<HostBytes>> HoldBelow(DeviceTensor& tensor,
                                                       bool is_written);
  absl::Status CopyUp(DeviceTensor& tensor, DeviceBlock& block,
                      const std::byte* source,
                      std::shared_ptr<DeviceEvent>* arrived);
  absl::StatusOr<std::unique_ptr<DeviceBlock>> AllocateFor(
      DeviceTensor& tensor);
  void MakeRoom(int64_t bytes);
  bool Evict(DeviceTensor& tensor);
  bool MayGo(DeviceTensor& tensor);
  // With the word; its copy's end. Streams other than the copy's go on.
  absl::StatusOr<std::shared_ptr<DeviceEvent>> CopyDown(DeviceTensor& tensor);
  // With the word, which it ends: without a copy. False: there was no block.
  bool Drop(DeviceTensor& tensor);
  // What DropClean looks at from now on.
  void List() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Tensors All() const;
  Tensors OldestFirst() const;
  void NoteError(const absl::Status& status);
  void Hold(int64_t bytes);

  StreamedDevice& memory_;
  DeviceRoom room_;
  DeviceCopies copies_;
  mutable Mutex mutex_;
  Tensors tensors_ ABSL_GUARDED_BY(mutex_);
  // The same for DropClean, which takes no lock that is held across anything.
  ListedTensors listed_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> uses_ = 0;
  std::atomic<int64_t> held_bytes_ = 0;
  std::atomic<int64_t> peak_bytes_ = 0;
  std::atomic<int64_t> fetches_ = 0;
  std::atomic<int64_t> evictions_ = 0;
  std::atomic<int64_t> clean_drops_ = 0;
  std::atomic<int64_t> relief_drops_ = 0;
};

}  // namespace terrace
