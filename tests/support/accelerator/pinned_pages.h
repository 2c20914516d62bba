// Memory of the CPU that streams copy to and from as they get there. A page
// that a task still uses is closed to the CPU: who reads what a copy has yet to
// write, or writes to what it has yet to read, without having waited for it
// faults, is let through and reported; nothing is left to chance. System calls
// are refused such pages (EFAULT).
//
// A freed block is given out again when the tasks that used it are over. Memory
// of others that is registered is pinned too: nothing is known of it but what
// tasks do, and what DeviceStreams::NoteCpuUse is told.
//
// Thread-safe; one a process, as it takes the process's SIGSEGV and hands on
// what is not its own. Its streams outlive it.
#pragma once

#include <signal.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "tests/support/accelerator/block_pool.h"
#include "tests/support/accelerator/device_streams.h"
#include "tests/support/accelerator/twin_mapping.h"

namespace terrace {

class PinnedPages {
 public:
  PinnedPages(DeviceStreams& streams, size_t address_bytes);
  ~PinnedPages();
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;

  // Of whole pages; nothing: there is no room.
  std::optional<uintptr_t> Allocate(size_t bytes);
  void Free(uintptr_t address);

  void Register(AddressRange range);
  // False: it is not registered.
  bool Unregister(uintptr_t begin);

  bool IsPinned(uintptr_t address) const;
  // Where streams have the byte of pinned memory.
  std::byte* Twin(uintptr_t address) const;

  // A task of the stream has been given that uses the bytes.
  void NoteUse(const Touch& touch, AcceleratorStream stream);
  // The CPU has waited for something: opens what is over.
  void OpenWaited();
  // Reports what has faulted since.
  void NoteFaults();

  BlockPoolStats stats() const;
  void LockForFork() { mutex_.lock(); }
  void UnlockAfterFork() { mutex_.unlock(); }

 private:
  using Grant = TwinMapping::Grant;

  // A page that tasks of a stream use, the last of which was given to it.
  struct Closed {
    Grant grant = Grant::kNothing;  // what the CPU may still
    AcceleratorStream stream = 0;
  };
  static constexpr size_t kMostFaults = 1024;  // between two looks

  static void OnFault(int signal, siginfo_t* info, void* context);
  // The fault is this memory's, which is open now. In a signal's handler.
  bool Open(uintptr_t address);
  void Close(AddressRange pages, const Closed& how);
  void NoteFaultsLocked();

  DeviceStreams& streams_;
  TwinMapping mapping_;
  mutable std::mutex mutex_;
  BlockPool pool_;
  std::map<uintptr_t, Closed> closed_;
  std::array<std::atomic<uintptr_t>, kMostFaults> faults_{};
  std::atomic<size_t> fault_count_ = 0;
  std::map<uintptr_t, uintptr_t> registered_;
};

}  // namespace terrace
