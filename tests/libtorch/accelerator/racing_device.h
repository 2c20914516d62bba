// A device whose streams race as far as nothing orders them: each access to a
// block is compared with those before it, and what neither a stream, an event
// nor a wait of the CPU puts in order is a race. Copies are done as they are
// given, so that values can be compared; freed blocks are poisoned, and their
// memory is given out again at once where the allocator may.
//
// The allocator is LibTorch's as far as the rules need it: a pool for each home
// stream, a lock held in each call, blocks with recorded uses kept until those
// are done, the relief's port asked on each miss, and all cached blocks
// released before it gives up.
//
// Thread-safe; the order of what several threads give is the order they come
// in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "libtorch/accelerator/relief_port.h"
#include "libtorch/accelerator/streamed_device.h"

namespace terrace {

class RacingDevice final : public StreamedDevice {
 public:
  using Clock = std::map<StreamId, int64_t>;
  static constexpr StreamId kToDevice = 100;
  static constexpr StreamId kToHost = 101;

  explicit RacingDevice(int64_t limit_bytes = INT64_MAX)
      : limit_bytes_(limit_bytes) {}

  // Of the calling thread.
  static void SetCurrent(StreamId stream);
  void SetPort(ReliefPort* port) { port_ = port; }
  // In the midst of each allocation and at each block's end.
  void SetOnBlock(std::function<void()> call) { on_block_ = std::move(call); }
  void BeginCapture(StreamId stream);
  void EndCapture(StreamId stream);
  // Events are not done before this says so, or a wait.
  void SetSlow(bool is_slow) { is_slow_ = is_slow; }
  // The call so many from now of those that may fail does.
  void FailAfter(int64_t calls) { calls_until_failure_ = calls; }

  // What an operation does: reads the block's first byte, or fills the block.
  std::byte Read(std::byte* address, StreamId stream);
  void Fill(std::byte* address, StreamId stream, std::byte value);

  // What was found, in words; empty: no race.
  std::vector<std::string> races() const;
  int64_t waits_for_all() const { return waits_for_all_; }
  // The CPU knows that all before is done.
  bool IsKnownDone(const std::byte* host);

  StreamId CurrentStream() override;
  StreamId CopyStream(CopyDirection direction) const override;
  absl::StatusOr<std::shared_ptr<DeviceEvent>> Record(StreamId stream) override;
  absl::Status Await(StreamId stream, DeviceEvent& event) override;
  absl::StatusOr<bool> IsDone(DeviceEvent& event) override;
  absl::Status Wait(DeviceEvent& event) override;
  absl::Status WaitForAll() override;
  bool IsCapturing(StreamId stream) override;
  absl::StatusOr<std::unique_ptr<DeviceBlock>> Allocate(int64_t bytes,
                                                        StreamId home) override;
  absl::Status Copy(CopyDirection direction, std::byte* target,
                    const std::byte* source, int64_t bytes) override;
  Usage usage() override;

  class Block;

 private:
  struct Memory {  // of one address
    std::vector<std::byte> bytes;
    StreamId home = 0;
    int64_t generation = 0;
    bool is_used = false;
    std::set<StreamId> recorded;
    Clock pending;  // of recorded uses, at its end
  };
  friend class Block;
  struct Access {
    StreamId stream;
    int64_t time;
    bool is_write;
    int64_t generation;
  };

  bool IsStillWritten(const std::byte* host);
  absl::Status MayFail(const char* call);
  void Touch(const std::byte* address, StreamId stream, bool is_write);
  Memory* FindFree(int64_t bytes, StreamId home);
  void Free(Memory& memory);
  void Unsafe(const char* call, StreamId stream);

  // Recursive, and held while the port is asked, as the allocator's is.
  std::recursive_mutex allocator_;
  mutable std::recursive_mutex mutex_;
  const int64_t limit_bytes_;
  ReliefPort* port_ = nullptr;
  std::function<void()> on_block_;
  std::map<StreamId, Clock> clocks_;
  Clock host_;  // what the CPU knows to be done
  std::map<const std::byte*, std::unique_ptr<Memory>> memory_;
  std::map<const std::byte*, std::vector<Access>> accesses_;
  std::set<StreamId> capturing_;
  std::vector<std::string> races_;
  bool is_slow_ = false;
  int64_t calls_until_failure_ = INT64_MAX;
  int64_t waits_for_all_ = 0;
};

// A storage of such a device.
class RacingPlace final : public BlockPlace {
 public:
  RacingPlace(RacingDevice& device, std::unique_ptr<DeviceBlock> block)
      : device_(device), block_(std::move(block)) {}

  bool is_gone() const override { return is_gone_; }
  std::byte* address() const override {
    return block_ == nullptr ? nullptr : block_->address();
  }
  bool Install(std::unique_ptr<DeviceBlock> block) override;
  std::unique_ptr<DeviceBlock> Take() override;
  bool Keep() override {
    is_kept_ = !is_gone_;
    return is_kept_;
  }
  void Settle() override {
    is_kept_ = false;
    if (is_gone_) block_.reset();
  }
  absl::Status RecordUse(StreamId stream) override;
  bool Refuse(const std::string& text) override {
    refusal_ = text;
    return can_forgive_;
  }
  void Forgive() override { refusal_.clear(); }

  // The last tensor of the storage ends.
  void Die() {
    is_gone_ = true;
    if (!is_kept_) block_.reset();
  }
  const std::string& refusal() const { return refusal_; }
  void SetCanForgive(bool can_forgive) { can_forgive_ = can_forgive; }

 private:
  RacingDevice& device_;
  std::unique_ptr<DeviceBlock> block_;
  bool is_gone_ = false;
  bool is_kept_ = false;
  bool can_forgive_ = true;
  std::string refusal_;
};

// Memory whose bytes are let go only once the CPU knows that no copy uses them.
class RacingBelow final : public BytesBelow {
 public:
  RacingBelow(RacingDevice& device, int64_t bytes)
      : device_(device), bytes_(static_cast<size_t>(bytes)) {}

  absl::StatusOr<std::unique_ptr<HostBytes>> Hold(bool is_written) override;

  void Fail(absl::Status status) { failure_ = std::move(status); }
  // Before each Hold, which its error is then.
  void SetOnHold(std::function<absl::Status()> call) {
    on_hold_ = std::move(call);
  }
  // Of what holds them, by whatever thread. One lock for the count and for what
  // its end finds: another may hold them at once, for a copy of its own.
  struct Holds {
    std::mutex mutex;
    int64_t held = 0;
    int64_t let_go_early = 0;
  };
  int64_t held() const {
    const std::lock_guard lock(holds_->mutex);
    return holds_->held;
  }
  int64_t let_go_early() const {
    const std::lock_guard lock(holds_->mutex);
    return holds_->let_go_early;
  }

 private:
  RacingDevice& device_;
  std::vector<std::byte> bytes_;
  absl::Status failure_;
  std::function<absl::Status()> on_hold_;
  const std::shared_ptr<Holds> holds_ = std::make_shared<Holds>();
};

}  // namespace terrace
