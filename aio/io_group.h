// All disk paths of one runtime: one engine, one IoQueue per path. Whole
// transfers or a Status, never short; exactly one completion each.
//
// Used by one thread, the mover; only Wake is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "aio/engine.h"
#include "runtime/base/clock.h"

namespace terrace {

// Served by deficit round robin in bytes, by the weights; within a class first
// who is due first: its arrival and its timeout.
enum class IoClass : uint8_t { kDemand = 0, kPrefetch = 1, kWriteBack = 2 };

// Offset, size and data are aligned to 4096. The buffer is the group's until
// the completion with this tag; after a DeadlineExceeded completion it stays
// the kernel's (quarantined) until a second one, `released`, gives it back.
//
// `timeout` is how long the device may leave it unanswered, not how long it
// may take: what waits behind our own transfers, in the window or in flight,
// does not expire while these are answered. A request in flight expires that
// long after it was issued or one issued no later was answered; a transfer
// with none in flight, that long after its arrival or the path's last answer.
// So with a device that answers nothing all end within twice the timeout. Time
// in which nobody polled, as of a process that was stopped, is not counted:
// after a gap of more than half a timeout all begin anew.
struct IoTransfer {
  IoDirection direction = IoDirection::kRead;
  IoClass io_class = IoClass::kDemand;
  std::byte* data = nullptr;
  int64_t offset = 0;
  int64_t size_bytes = 0;
  uint64_t tag = 0;
  absl::Duration timeout = absl::InfiniteDuration();
};

struct Completion {
  int path = 0;
  uint64_t tag = 0;
  absl::Status status;       // names path, offset, bytes and errno
  bool quarantined = false;  // DeadlineExceeded; the buffer is not yet back
  bool released = false;     // a quarantined buffer came back; status is its
};

struct IoQueueOptions {
  int64_t window_bytes = 8 << 20;  // in flight; at first, if it adapts
  int64_t piece_bytes = 4 << 20;   // at most; equal pieces
  // Whether the window follows the device: aio/io_window.h.
  bool adapts = true;
  int64_t max_window_bytes = 32 << 20;
  absl::Duration window_latency = absl::Microseconds(1650);
  int max_retries = 8;         // EAGAIN, EINTR, with a growing pause
  int read_error_retries = 2;  // EIO of a read; writes none
  int weights[3] = {4, 1, 1};  // demand, prefetch, write-back
};

struct IoPathStats {
  int64_t bytes_read = 0;  // that moved, whatever became of the transfer
  int64_t bytes_written = 0;
  int64_t requests_read = 0;
  int64_t requests_written = 0;
  int64_t retries = 0;
  int64_t continuations = 0;
  int64_t in_flight_bytes = 0;
  int64_t quarantined_bytes = 0;
  int64_t window_bytes = 0;  // now
  // How long requests of that direction were in flight, late ones left out.
  absl::Duration read_busy;
  absl::Duration write_busy;
};

class IoGroup {
 public:
  // `clock` must outlive the group.
  IoGroup(std::unique_ptr<IoEngine> engine, Clock& clock);
  // TERRACE_CHECKs that nothing is in flight; see Abandon.
  ~IoGroup();

  // `name` (a file's path) is what errors name. `fd` as IoEngine::AddFile
  // takes it; it must outlive the group.
  absl::StatusOr<int> AddPath(const std::string& name, int fd,
                              const IoQueueOptions& options);

  // The tag is unique among this path's pending transfers. Never blocks,
  // never fails: every end is a Completion.
  void Enqueue(int path, const IoTransfer& transfer);

  // Drops what is not yet issued; the transfer ends as Cancelled when its
  // issued pieces have landed. False: no such transfer.
  bool Cancel(int path, uint64_t tag);

  // Raises a pending transfer to a more urgent class.
  void Promote(int path, uint64_t tag, IoClass io_class);

  // Turns the crank: reaps, continues, retries, refills the windows; appends
  // what ended. Never blocks.
  void Poll(std::vector<Completion>* completions);

  // Pending transfers, over all paths, quarantined ones included.
  int64_t pending() const;

  // When Poll has something to do without an outside event: retries, timeouts
  // and looks for them, paced completions. InfiniteFuture when none.
  absl::Time NextEvent() const;
  void Wait(absl::Time deadline);
  void Wake();  // thread-safe, sticky

  void RegisterArena(absl::Span<std::byte> arena);
  EngineInfo engine_info() const;
  IoPathStats stats(int path) const;

  // Leaks the engine and its buffers on purpose, for a Close that timed out.
  void Abandon();

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace terrace
