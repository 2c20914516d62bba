// The memory of a fake device. Its addresses cannot be read or written: doing
// so ends the test with a signal. Thread-safe for ranges that do not overlap;
// what customers do wrong is kept, for the test to look at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "base/mutex.h"
#include "tiers/extent_allocator.h"

namespace terrace {

class DeviceBytes : public std::enable_shared_from_this<DeviceBytes> {
 public:
  DeviceBytes(std::string name, int64_t capacity_bytes);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  // ResourceExhausted: there is no such range.
  absl::StatusOr<DeviceMemory> Allocate(int64_t bytes);
  // Unavailable: a part of it is registered already.
  absl::StatusOr<HostRegistration> Register(absl::Span<std::byte> piece);

  // Where the bytes of an address really are; null, which is noted: they are
  // not all of one block.
  std::byte* At(const void* address, int64_t bytes);
  // Notes it where some of the range is not registered and must be.
  void CheckPinned(const std::byte* host, int64_t bytes);
  // Copies must be of registered memory from here on.
  void RequirePins();

  int64_t used_bytes() const;
  int64_t registered_pieces() const;
  std::vector<std::string> violations() const;

 private:
  void Note(std::string violation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  const int64_t capacity_bytes_;
  std::byte* const addresses_;  // reserved, never accessible
  std::vector<std::byte> memory_;
  mutable Mutex mutex_;
  ExtentAllocator space_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, int64_t> blocks_ ABSL_GUARDED_BY(mutex_);  // offset, size
  std::map<const std::byte*, int64_t> pins_ ABSL_GUARDED_BY(mutex_);
  bool requires_pins_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> violations_ ABSL_GUARDED_BY(mutex_);
};

// What a copy to or from what is no memory of the device ends as.
inline absl::Status NoSuchAddress() {
  return absl::InvalidArgumentError("no memory of the device is there");
}

// Addresses that cannot be read or written, for munmap to give back.
std::byte* ReserveAddresses(int64_t bytes);

// Plain memory, aligned as a device's.
PinnedMemory PlainPinnedMemory(int64_t bytes);

}  // namespace terrace
