// How chunks of parameters on a device pass through host memory: a few pinned
// slots. A chunk's parameters and gradients are copied into a slot; kernels
// work there as on parameters in CPU memory; the parameters are copied back and
// the slot is free again. While one chunk is computed others are on their way
// in either direction. Parameters with a master come too, 2 bytes an element
// beside the gradient's: what was written into them is known nowhere else.
//
// A slot is at most what one chunk has: 8 MiB for a chunk of fp32 parameters.
// Four of them keep both copy engines and the kernels busy; they are one
// allocation of at most 32 MiB, beside the Runtime's budget and reported. An
// allocator may round it up to a power of two, as LibTorch's does: 32 MiB too.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "base/mutex.h"
#include "optimizer/chunks/chunk_layout.h"
#include "terrace/optimizer.h"

namespace terrace {

class Staging;

// How often copies are looked at: much less than those of a slot take.
inline constexpr absl::Duration kCopyLook = absl::Microseconds(50);

// Bytes of pinned memory and a stream of each device. One thread at a time.
// Copies are polled; Wait is for those that are given up.
class StagingSlot {
 public:
  StagingSlot(Staging& staging, std::byte* bytes)
      : staging_(staging), bytes_(bytes) {}

  std::byte* bytes() const { return bytes_; }

  // As of Device::Stream, which they pass on to.
  absl::Status CopyToHost(Device& device, void* target, const void* source,
                          int64_t bytes);
  absl::Status CopyToDevice(Device& device, void* target, const void* source,
                            int64_t bytes);
  // Of all devices: the first error of the copies that were begun since this
  // last said so; nullopt while one is under way. Never blocks.
  std::optional<absl::Status> Poll();
  // Until none is under way, however they end.
  void Wait();

 private:
  struct DeviceStream {
    Device* device;
    std::unique_ptr<Device::Stream> stream;
    int64_t under_way = 0;  // copies
  };

  absl::StatusOr<DeviceStream*> StreamOf(Device& device);

  Staging& staging_;
  std::byte* const bytes_;
  std::vector<DeviceStream> streams_;
  absl::Status first_;               // of what has ended
  std::vector<absl::Status> ended_;  // what a poll was told, to be used again
};

// Thread-safe but for Prepare, which needs every slot free. Devices must
// outlive it.
class Staging {
 public:
  static constexpr int kSlots = 4;
  // Of a slot: gradients come through in pieces of that size.
  static constexpr int64_t kLeastSlotBytes = 1 << 20;

  // What slots take for those on devices, at most, where chunks have such
  // payloads.
  static int64_t BytesFor(absl::Span<const ParameterSpec> parameters,
                          int64_t chunk_payload_bytes);

  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  // Slots of at least `slot_bytes`; keeps larger ones.
  absl::Status Prepare(Device& device, int64_t slot_bytes);

  // There is one: of those that take slots, at most kSlots are at work.
  StagingSlot& Take();
  void Return(StagingSlot& slot);

  int64_t bytes() const { return kSlots * slot_bytes_; }
  // Copied since it was made.
  int64_t bytes_from_devices() const { return from_devices_; }
  int64_t bytes_to_devices() const { return to_devices_; }

 private:
  friend class StagingSlot;

  int64_t slot_bytes_ = 0;
  PinnedMemory memory_;
  std::vector<std::unique_ptr<StagingSlot>> slots_;
  // Relaxed: sums only.
  std::atomic<int64_t> from_devices_ = 0;
  std::atomic<int64_t> to_devices_ = 0;

  Mutex mutex_;
  std::vector<StagingSlot*> free_ ABSL_GUARDED_BY(mutex_);
};

// One chunk in a slot, for one step: its copies in, the tasks that update it,
// its copies out, one after the other. Whoever has it is one thread at a time,
// but for segment. `chunk` and `parameters` must outlive it.
class StagedChunk {
 public:
  // What a slot must hold for it; 0 where no parameter with a gradient is on a
  // device.
  static int64_t Bytes(const Chunk& chunk,
                       absl::Span<const ParameterData> parameters);

  // Takes a slot and begins the copies into it; null where Bytes is 0.
  static absl::StatusOr<std::unique_ptr<StagedChunk>> Fetch(
      Staging& staging, const Chunk& chunk,
      absl::Span<const ParameterData> parameters);

  StagedChunk(Staging& staging, const Chunk& chunk,
              absl::Span<const ParameterData> parameters);
  StagedChunk(const StagedChunk&) = delete;
  StagedChunk& operator=(const StagedChunk&) = delete;
  // With copies under way it waits for them. What is not back is given up.
  ~StagedChunk();

  // Whether everything has arrived, or not all can; nullopt: copies are under
  // way. Never blocks.
  std::optional<absl::Status> Arrived();

  // Where segment `index` is in host memory, from its first element on; null
  // addresses: where the caller has it. Once it has arrived. Thread-safe.
  const ParameterData& segment(size_t index) const { return segments_[index]; }

  // Begins to copy the parameters back. Once, after the update.
  void BeginReturn();
  // Whether they are back, or not all can be; nullopt: copies are under way.
  std::optional<absl::Status> Returned();
  // Where not all can be: keeps them in ordinary memory, and the slot is free.
  // False: there is no such memory, or a device has failed for good.
  bool Keep();
  // Of one that is kept: takes a slot, and begins once more to copy them back.
  // `parameters` are those of before, and must outlive it.
  void ReturnAgain(absl::Span<const ParameterData> parameters);

 private:
  absl::Status BeginFetch();
  // Its bytes are elsewhere from here on.
  void Move(const std::byte* from, std::byte* to);

  Staging& staging_;
  const Chunk& chunk_;
  absl::Span<const ParameterData> parameters_;
  const int64_t bytes_;
  StagingSlot* slot_;  // null: it is kept
  std::unique_ptr<std::byte[]> kept_;
  std::vector<ParameterData> segments_;
  absl::Status return_begun_;
};

}  // namespace terrace
