// One device's memory: a caching allocator's blocks (block_pool.h) in pages
// that are closed to everybody at the addresses that tensors name, always;
// streams have the same pages at another (twin_mapping.h). The system has the
// pages of freed blocks back when the cache is emptied.
//
// Thread-safe. Its streams outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "tests/support/accelerator/block_pool.h"
#include "tests/support/accelerator/device_streams.h"
#include "tests/support/accelerator/twin_mapping.h"

namespace terrace {

class AcceleratorMemory {
 public:
  // `limit_bytes` until it is set.
  AcceleratorMemory(DeviceStreams& streams, size_t address_bytes,
                    size_t limit_bytes);

  // From whom the memory may be, when the device is full.
  void AddStream(AcceleratorStream stream);
  // Nothing: the device is full though all was waited for and released.
  std::optional<uintptr_t> Allocate(size_t bytes, AcceleratorStream home);
  void RecordUse(uintptr_t address, AcceleratorStream stream);
  void Free(uintptr_t address);
  void EmptyCache();

  bool Has(uintptr_t address) const { return mapping_.Has(address); }
  std::byte* Twin(uintptr_t address) const { return mapping_.Twin(address); }

  void SetLimit(size_t bytes);
  size_t limit_bytes() const;
  BlockPoolStats stats() const;
  void ResetPeak();

  void LockForFork() { mutex_.lock(); }
  void UnlockAfterFork() { mutex_.unlock(); }

 private:
  void Collect();
  void Release(const std::vector<StreamMark>& all);
  // Waits for all streams, without a lock.
  std::vector<StreamMark> WaitForAll();

  DeviceStreams& streams_;
  TwinMapping mapping_;
  mutable std::mutex mutex_;
  BlockPool pool_;
  std::vector<AcceleratorStream> own_;
};

}  // namespace terrace
