// The façade: registers tensors, opens queues, reports, closes.
//
//   Options options;
//   options.host_budget_bytes = 64 << 20;
//   options.paths = {"/mnt/nvme0"};
//   auto runtime = Runtime::Create(options);
//
// Thread-safe. Everything made from a Runtime must be gone before it is;
// Close says who is not.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "terrace/options.h"
#include "terrace/request.h"
#include "terrace/stats.h"
#include "terrace/tensor.h"

namespace terrace {

class Clock;     // private interfaces of the library: customers that run
class Executor;  // kernels of their own share the pool and the time with it

class Runtime {
 public:
  // Makes the arena and the job's files and starts the mover.
  // InvalidArgument: bad options, a path that is no directory; NotFound: a
  // path that does not exist; PermissionDenied: one that cannot be written;
  // ResourceExhausted: no memory; Unavailable: a named engine or huge pages
  // that cannot be had.
  static absl::StatusOr<std::unique_ptr<Runtime>> Create(
      const Options& options);

  // Closes with a deadline of 30 seconds if Close was not called.
  virtual ~Runtime() = default;

  // Gives the tensor a home on a path (none where there are no paths).
  // AlreadyExists: the name; ResourceExhausted: no room on any path.
  virtual absl::StatusOr<TensorId> Register(const TensorSpec& spec) = 0;

  // Reserves a window of `slots` slots, each for a tensor of up to
  // `slot_bytes` (payload; the header's 4 KiB are added). ResourceExhausted
  // at once when all windows together exceed the budget, naming the minimum;
  // else residents are evicted for it until `deadline`.
  virtual absl::StatusOr<std::unique_ptr<RequestQueue>> OpenQueue(
      int64_t slot_bytes, int slots, Time deadline) = 0;

  // Push and Next on a queue of one, for a single tensor.
  virtual absl::StatusOr<Pin> Acquire(TensorId tensor, Access access,
                                      Time deadline) = 0;

  // A hint: never fails, never blocks, may be dropped.
  virtual void Prefetch(absl::Span<const TensorId> tensors) = 0;

  virtual Stats GetStats() const = 0;

  // Ends all pending requests as Cancelled, waits for transfers in flight,
  // removes the job's files. FailedPrecondition: pins or queues are still
  // held (named; nothing was closed for them). DeadlineExceeded: transfers
  // that never ended; engine and arena are leaked on purpose and counted.
  virtual absl::Status Close(Time deadline) = 0;

  virtual Clock& clock() = 0;
  virtual Executor& executor() = 0;
};

// The arena bytes that a window of these takes, and one tensor of
// `size_bytes` outside a window.
int64_t WindowBytes(int64_t slot_bytes, int slots);
int64_t ResidentBytes(int64_t size_bytes);

}  // namespace terrace
