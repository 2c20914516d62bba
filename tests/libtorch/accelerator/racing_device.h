// A device whose streams race as far as nothing orders them: each access to a
// block is compared with those before it, and what neither a stream, an event
// nor a wait of the CPU puts in order is a race. Copies are done as they are
// given, so that values can be compared; freed blocks are poisoned, and their
// memory is given out again at once where the allocator may.
//
// The allocator is LibTorch's as far as the rules need it: a pool for each home
// stream, and blocks with recorded uses kept until those are done.
//
// Thread-safe; the order of what several threads give is the order they come
// in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "libtorch/accelerator/streamed_device.h"

namespace terrace {

class RacingDevice final : public StreamedDevice {
 public:
  using Clock = std::map<StreamId, int64_t>;
  // Nothing but copies is given to these.
  static constexpr StreamId kToDevice = 100;
  static constexpr StreamId kToHost = 101;

  // Of the calling thread.
  static void SetCurrent(StreamId stream);
  void BeginCapture(StreamId stream);
  void EndCapture(StreamId stream);
  // Events are not done before a wait says so.
  void SetSlow(bool is_slow) { is_slow_ = is_slow; }

  class Block;
  // Its end gives the memory back.
  std::unique_ptr<Block> Allocate(int64_t bytes, StreamId home);
  // Given to the copy stream of that direction.
  void CopyUp(Block& target, const std::byte* source);
  void CopyDown(std::byte* target, const Block& source);

  // What an operation does: reads the block's first byte, or fills the block.
  std::byte Read(const Block& block, StreamId stream);
  void Fill(Block& block, StreamId stream, std::byte value);

  // What was found, in words; empty: no race.
  std::vector<std::string> races() const;
  int64_t waits_for_all() const { return waits_for_all_; }

  StreamId CurrentStream() override;
  absl::StatusOr<std::shared_ptr<DeviceEvent>> Record(StreamId stream) override;
  absl::Status Await(StreamId stream, DeviceEvent& event) override;
  absl::Status Wait(DeviceEvent& event) override;
  absl::Status WaitForAll() override;
  bool IsCapturing(StreamId stream) override;

 private:
  struct Memory {  // of one address
    std::vector<std::byte> bytes;
    StreamId home = 0;
    int64_t generation = 0;
    bool is_used = false;
    std::set<StreamId> recorded;
    Clock pending;  // of recorded uses, at its end
  };
  struct Access {
    StreamId stream;
    int64_t time;
    bool is_write;
    int64_t generation;
  };

  bool IsStillWritten(const std::byte* host);
  void Touch(const std::byte* address, StreamId stream, bool is_write);
  Memory* FindFree(int64_t bytes, StreamId home);
  void Free(Memory& memory);
  void Unsafe(const char* call, StreamId stream);

  mutable std::recursive_mutex mutex_;
  std::map<StreamId, Clock> clocks_;
  Clock host_;  // what the CPU knows to be done
  std::map<const std::byte*, std::unique_ptr<Memory>> memory_;
  std::map<const std::byte*, std::vector<Access>> accesses_;
  std::set<StreamId> capturing_;
  std::vector<std::string> races_;
  bool is_slow_ = false;
  int64_t waits_for_all_ = 0;
};

class RacingDevice::Block final : public StreamedBlock {
 public:
  Block(RacingDevice& device, Memory& memory)
      : device_(device), memory_(memory) {}
  ~Block() override { device_.Free(memory_); }
  absl::Status RecordUse(StreamId stream) override;

 private:
  friend class RacingDevice;

  RacingDevice& device_;
  Memory& memory_;
};

}  // namespace terrace
