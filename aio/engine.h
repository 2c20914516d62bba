// The lowest seam of disk I/O: an engine takes requests and completes them in
// any order, short or failed. It decides nothing; IoQueue above it does.
//
// Engines: io_uring and a pread/pwrite pool (production), memory-backed,
// paced and faulty ones (tests, simulation, benchmarks). One thread uses an
// engine; only Wake is thread-safe, and Withdraw may be called beside Wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "terrace/options.h"

namespace terrace {

enum class IoDirection : uint8_t { kRead, kWrite };

// The buffer is the engine's until the result with this tag was polled.
struct IoRequest {
  int file = -1;  // from AddFile
  IoDirection direction = IoDirection::kRead;
  std::byte* data = nullptr;
  int64_t offset = 0;
  int64_t size_bytes = 0;
  uint64_t tag = 0;
};

struct IoResult {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes moved (may be fewer than asked), or -errno
};

struct EngineInfo {
  std::string name;                 // "io_uring", "threads", "memory", ...
  std::string reason;               // flags in force; the errno of a step down
  bool buffers_registered = false;  // the whole arena
  int64_t registered_bytes = 0;     // of it
  int64_t paced_completions = 0;
  int64_t late_completions = 0;  // delivered > 1 ms after they were due
};

class IoEngine {
 public:
  virtual ~IoEngine() = default;

  // A file descriptor that stays open while the engine is there; returns its
  // index.
  virtual absl::StatusOr<int> AddFile(int fd) = 0;

  // Registers the one arena that most buffers lie in. Refusal (memlock) is
  // no error: it shows in info().
  virtual void RegisterArena(absl::Span<std::byte> arena) = 0;
  // Before that part of it has other pages, as what is registered keeps those
  // that it had: transfers there go on without. False: some that were submitted
  // have not reached the device; it is to be asked again after a Poll.
  virtual bool UnregisterArena(absl::Span<std::byte> /*part*/) { return true; }

  // How many requests of a file it may have at a time, those that never end
  // included: so much of it is the file's own, whatever others do.
  static constexpr int kMostSlots = 64;
  virtual int Slots(int /*file*/) const { return kMostSlots; }

  // Takes a prefix of the requests and says how many; 0 when full. They reach
  // the device with the next Poll or Wait at the latest.
  virtual int Submit(absl::Span<const IoRequest> requests) = 0;

  // Takes back a request that has not begun: its buffer is the caller's, and
  // no result comes. False: it has begun, or ended.
  virtual bool Withdraw(uint64_t /*tag*/) { return false; }

  // Fills results with what has completed; never blocks.
  virtual int Poll(absl::Span<IoResult> results) = 0;

  // Sleeps until something completed, Wake was called (also before: it is
  // sticky, and one Wait consumes it), or the deadline.
  virtual void Wait(absl::Time deadline) = 0;
  virtual void Wake() = 0;  // thread-safe

  // The time at which a completion becomes deliverable without any outside
  // event (paced, virtual engines); InfiniteFuture when none is known.
  virtual absl::Time NextEvent() const { return absl::InfiniteFuture(); }

  // Not OK: the kernel has refused the engine a call that it cannot do without,
  // "io_uring_enter: EPERM (...)", since it was made. Nothing moves any more:
  // all that was and will be submitted ends with that errno.
  virtual absl::Status failure() const { return absl::OkStatus(); }

  virtual EngineInfo info() const = 0;
};

// kAuto steps down to threads where the kernel refuses a ring or any call that
// one needs (ENOSYS, EPERM, EACCES, ENOMEM, ...), and where one of `files`,
// descriptors that it is
// for, is on FUSE: after a short reply to direct I/O a ring goes on at a wrong
// offset there (Linux 6.18). info().reason says so. A named engine is followed;
// one that cannot be had is Unavailable.
absl::StatusOr<std::unique_ptr<IoEngine>> MakeEngine(
    EngineKind kind, absl::Span<const int> files = {});

// Devices of `devices` times `bytes` of memory: AddFile(k) with k < devices
// opens device k (its argument is no descriptor). Copies happen on Poll, on
// the calling thread; completes in submission order unless decorated.
std::unique_ptr<IoEngine> MakeMemoryEngine(int devices, int64_t bytes,
                                           Clock& clock);

// Decorates `engine` as devices of a known rate, one server per file and
// direction: busy = max(now, busy) + bytes/rate. Passes I/O down at once and
// delivers at max(busy, real completion). A rate of 0 is not paced.
std::unique_ptr<IoEngine> MakePacedEngine(std::unique_ptr<IoEngine> engine,
                                          const PaceOptions& pace,
                                          Clock& clock);

// A device of a known rate that several engines have: a server for each
// direction. Thread-safe.
class PacedDevice {
 public:
  explicit PacedDevice(const PaceOptions& pace) : pace_(pace) {}

  const PaceOptions& pace() const { return pace_; }
  // When a request that comes now is done; InfinitePast: it is not paced.
  absl::Time Serve(IoDirection direction, int64_t bytes, absl::Time now);

 private:
  const PaceOptions pace_;
  Mutex mutex_;
  absl::Time busy_until_[2] ABSL_GUARDED_BY(mutex_) = {absl::InfinitePast(),
                                                       absl::InfinitePast()};
};

// The same, of file k on the k-th device.
std::unique_ptr<IoEngine> MakePacedEngine(
    std::unique_ptr<IoEngine> engine,
    std::vector<std::shared_ptr<PacedDevice>> devices, Clock& clock);

// The same at the rates that `pace_of` gives for a file: it is asked for every
// request.
std::unique_ptr<IoEngine> MakePacedEngine(
    std::unique_ptr<IoEngine> engine,
    std::function<PaceOptions(int file)> pace_of, Clock& clock);

}  // namespace terrace
