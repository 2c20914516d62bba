// A device of plain memory for tests of what is copied from and to one. Its
// addresses cannot be read or written: doing so ends the test with a signal.
//
// Copies happen late: when their stream is waited for, or, drawn from a
// seed, at any call before that, Poll too. Until then the target of a copy to
// the host holds 0xFF bytes (NaN), and a copy to the device takes what its
// source holds at that time. So code that does not wait is found out by wrong
// numbers. Any call can be told to fail.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/device.h"
#include "base/mutex.h"

namespace terrace {

class FakeDevice final : public Device {
 public:
  enum class CallKind : uint8_t {
    kAllocatePinned,
    kMakeStream,
    kSynchronize,
    kToHost,
    kToDevice,
    kWait,  // or Poll, with copies under way: they fail
  };
  struct Call {
    int64_t index;  // of all calls
    CallKind kind;
    bool to_device = false;  // kWait: a copy to the device is under way
  };
  using Fault = std::function<absl::Status(const Call&)>;

  FakeDevice(std::string name, int64_t capacity_bytes, uint64_t seed);
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;
  ~FakeDevice() override;

  // Takes bytes of the device until it goes.
  void* Take(int64_t bytes);
  // As work that a program queues: done by Synchronize.
  void QueueWrite(void* address, std::vector<std::byte> bytes);
  // What is there now.
  std::vector<std::byte> Read(const void* address, int64_t bytes) const;

  void set_fault(Fault fault);
  int64_t calls() const;
  // What customers did wrong: addresses that are not of the device, a range of
  // the host that two copies use at a time, a stream that went with copies.
  std::vector<std::string> violations() const;

  std::string name() const override { return name_; }
  absl::StatusOr<PinnedMemory> AllocatePinned(int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Stream>> MakeStream() override;
  absl::Status Synchronize() override;

 private:
  class FakeStream;
  struct Copy {
    std::byte* host;
    int64_t offset;  // in the device
    int64_t bytes;
    bool to_device;
  };
  struct Write {
    int64_t offset;
    std::vector<std::byte> bytes;
  };
  using Copies = std::deque<Copy>;

  absl::Status Enter(CallKind kind, bool to_device = false)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t OffsetOf(const void* address, int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunSome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunOne(Copies& copies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  std::byte* const addresses_;  // reserved, never accessible
  mutable Mutex mutex_;
  std::vector<std::byte> memory_ ABSL_GUARDED_BY(mutex_);
  int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Write> writes_ ABSL_GUARDED_BY(mutex_);
  std::set<Copies*> streams_ ABSL_GUARDED_BY(mutex_);
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  Fault fault_ ABSL_GUARDED_BY(mutex_);
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable std::vector<std::string> violations_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
