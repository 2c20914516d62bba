// The façade: registers tensors, opens queues, reports, closes.
//
//   Options options;
//   options.host_budget_bytes = 64 << 20;
//   options.paths = {"/mnt/nvme0"};
//   auto runtime = Runtime::Create(options);
//
// Thread-safe. Everything made from a Runtime must be gone before it is;
// Close says what is not.
//
// A child of fork() has nothing of it: there every call is Cancelled at once,
// GetStats is empty, and queues, pins and the Runtime itself are destroyed
// without an effect. A pin's bytes are not mapped in the child. The parent
// goes on undisturbed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "terrace/byte_queue.h"
#include "terrace/options.h"
#include "terrace/request.h"
#include "terrace/stats.h"
#include "terrace/tensor.h"
#include "terrace/thread_pool.h"
#include "terrace/tier.h"

namespace terrace {

class Runtime {
 public:
  // Makes the arena and the job's files and starts the mover.
  // InvalidArgument: bad options, a budget below the least that works or beyond
  // what the disk or device has, a path that is no directory, file or block
  // device, or one of the latter that holds data of others (with the command
  // that clears it); Unimplemented: a tier of a kind that this build or machine
  // has not; NotFound: a path that does not exist; PermissionDenied:
  // one that cannot be written; FailedPrecondition: a device that is mounted or
  // otherwise in use; ResourceExhausted: no memory, or none on the named node,
  // or a device too small; Unavailable: a named engine, huge pages or a memory
  // node that cannot be had, or a file or device that another job has.
  // What killed jobs left in a directory is removed in the background, and
  // waited for only where the disk is full of it.
  static absl::StatusOr<std::unique_ptr<Runtime>> Create(
      const Options& options);

  // The same over a host's daemon (docs/daemon.md), whose socket is named as
  // "unix:/run/terrace/control.sock" or by its path: the daemon has a runtime
  // for this one, moves its tensors and reads and writes its disks. This
  // process has the memory as well, and computes. What it asks of the daemon is
  // `host_budget_bytes`, and `host_growth_bytes` for later; `eviction`,
  // `prefetch`, `job` and threads are as ever, `io_timeout` is how long the
  // daemon may say nothing at all, and what else is its to say is
  // InvalidArgument: tiers, paths, an engine, a pace, a profile, huge pages or
  // weights of I/O.
  // NotFound: nobody listens there; PermissionDenied: this user may not, or the
  // daemon refuses it; ResourceExhausted: beyond a quota (names the limit and
  // the use), or no such memory; DeadlineExceeded: no answer for 80 s, and
  // 8 s more for each GiB. A daemon that is killed, and whose service manager
  // keeps what its jobs have, is followed by another within `io_timeout`:
  // nothing is lost, and calls take as long as that takes. Where none follows,
  // and once the daemon has ended or stopped, every request is Unavailable: its
  // tensors are lost, the bytes of pins stay readable, and a checkpoint is
  // where to go on from. Stats are then the last that were told, and Close is
  // OK.
  static absl::StatusOr<std::unique_ptr<Runtime>> Connect(
      const std::string& socket, const Options& options);

  // Closes with a deadline of 30 seconds if Close did not. Pins that are still
  // held then stay usable: the arena is leaked for them.
  virtual ~Runtime() = default;

  // Gives the tensor a home on a path (none where there are no paths). A disk
  // that does not answer for Options::io_timeout while its file grows is
  // degraded, and the next path is tried. AlreadyExists: the name;
  // ResourceExhausted: no room on any path (ENOSPC) or in its budget (EDQUOT);
  // DeadlineExceeded: no answer; both name path and bytes.
  // Unavailable: all paths are degraded; names each and what it refused.
  virtual absl::StatusOr<TensorId> Register(const TensorSpec& spec) = 0;
  // All of them, in that order, or none: with the first error. One answer for
  // many, where each Register is a round trip to the mover's thread.
  virtual absl::StatusOr<std::vector<TensorId>> Register(
      absl::Span<const TensorSpec> specs);

  // Forgets the tensor and its contents: its home and its name are free again,
  // its id is never reused. Transfers of it in flight are cancelled and waited
  // for; one that is past its deadline keeps the home until it ends.
  // InvalidArgument: no such tensor. FailedPrecondition, and nothing changes:
  // it is pinned, or a group of an open queue wants it.
  virtual absl::Status Unregister(TensorId tensor) = 0;

  // Reserves a window of `slots` slots, each for a tensor of up to
  // `slot_bytes` (payload; the header's 4 KiB are added). ResourceExhausted
  // at once when all windows together exceed the budget, naming the minimum;
  // else residents are evicted for it until `deadline`, and where other windows
  // leave the free room in parts, they are waited for. What cannot be written
  // back ends that at once, if nothing else makes room. The Status says what
  // was asked for, what is free and the largest part of it. Also tries failed
  // write-backs again: a closed queue's window is free once the last of its
  // slots is written back. While it waits for room, nothing new becomes
  // resident outside the windows.
  virtual absl::StatusOr<std::unique_ptr<RequestQueue>> OpenQueue(
      int64_t slot_bytes, int slots, Time deadline) = 0;

  // A queue whose window and pins are on the working tier of that name: a
  // memory or a device. A tier's name is as Options and Stats have it
  // (`dram:node1`, `hbm:cuda:0`), its number among those of its kind, in the
  // order of Options (`hbm:1`), or the kind alone, for the first (`dram`). ""
  // is the first memory, as above. On a device a pin has an address and no
  // data, and a window takes staging in the first memory as well
  // (StagingBytes), which what moves between it and disks passes through; the
  // queue has both or none. Whatever tier a tensor is asked for at, its newest
  // contents come there, from any other. InvalidArgument: no such tier, or
  // customers do not work there; the message names those where they do.
  virtual absl::StatusOr<std::unique_ptr<RequestQueue>> OpenQueue(
      int64_t slot_bytes, int slots, Time deadline, absl::string_view tier);

  // A queue of bytes (terrace/byte_queue.h) at a memory or a device of that
  // name, as OpenQueue has it. It takes no memory by itself: it is promised
  // `window_bytes` of the budget. ResourceExhausted: with all other windows
  // that is more than the budget; Unavailable: a device that is lost. On a
  // device a pin has an address and no data, and nothing is beyond the budget:
  // a group for which no room will come there, or in the first memory, which
  // what rests below passes through, ends with ResourceExhausted, at once where
  // its tensors are larger than either can have. From the first such queue on
  // the groups of queues with slots come into their own windows, so that their
  // pins are not in the way of tensors of other sizes. What comes ahead for
  // these, in the order of all customers, comes outside too, where there is
  // much room; they pin no more than they have slots. InvalidArgument: no
  // bytes, or no such tier; Unimplemented: a runtime of another kind.
  virtual absl::StatusOr<std::unique_ptr<ByteQueue>> OpenBytes(
      int64_t window_bytes, absl::string_view tier);
  absl::StatusOr<std::unique_ptr<ByteQueue>> OpenBytes(int64_t window_bytes) {
    return OpenBytes(window_bytes, "");
  }

  // Push and Next on a queue of one, for a single tensor. Its window is carved
  // from the budget even if the tensor is resident already.
  virtual absl::StatusOr<Pin> Acquire(TensorId tensor, Access access,
                                      Time deadline) = 0;

  // More of the first memory for the budget, at once and for good, as for a
  // customer that joins: in whole blocks of 4 KiB, populated like the rest, but
  // not registered with an I/O engine. After an error nothing has changed.
  // A daemon may have it wait for what other jobs lend (docs/daemon.md).
  // InvalidArgument: no bytes; ResourceExhausted: beyond
  // Options::host_growth_bytes, or there is no such memory; Unimplemented: a
  // runtime of another kind, or with a device.
  virtual absl::Status GrowMemory(int64_t bytes);

  // A hint: never fails, never blocks, may be dropped.
  virtual void Prefetch(absl::Span<const TensorId> tensors) = 0;

  // After Close: what was true at the end.
  virtual Stats GetStats() const = 0;

  // From here on every request is Cancelled: a pending Next at once, and all
  // that are made later. Then waits for transfers in flight and removes the
  // job's files; writes nothing back. Repeated, it is OK.
  // FailedPrecondition, at once: pins or queues are still held (named). They
  // stay valid, nothing is removed: when they are gone, Close again.
  // DeadlineExceeded: transfers that never ended; engine and arena are leaked
  // on purpose and counted (Stats::leaked_bytes); or files of a disk that does
  // not answer (named). They are removed as soon as it does, if the process is
  // still there; else by the next start on the path.
  virtual absl::Status Close(Time deadline) = 0;

  // What its checksums and copies run on: Options::thread_pool, or one of its
  // own. Customers' kernels share it.
  virtual ThreadPool thread_pool() const = 0;
};

// The arena bytes that a window of these takes, and one tensor of
// `size_bytes` outside a window; INT64_MAX for more than can be counted.
int64_t WindowBytes(int64_t slot_bytes, int slots);
int64_t ResidentBytes(int64_t size_bytes);
// Those that a device's window of these takes for its staging.
int64_t StagingBytes(int64_t slot_bytes, int slots);

}  // namespace terrace
