// Any engine with faults: seeded or aimed at the n-th call, changed while it
// runs. Stands below IoQueue, so its faults reach all policy.
//
//   auto plan = std::make_shared<FaultPlan>();
//   plan->FailCall(3, {.kind = FaultKind::kError, .error = EIO});
//   auto engine = MakeFaultEngine(std::move(memory), plan, clock);
//
// A call is one request given to Submit, counted from 1 over all files or per
// direction. A fault sweep fails the 1st, 2nd, ... call until a run sees no
// fault: FailCall(n, fault), run, then stop when faults() == 0.
#pragma once

#include <cerrno>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "aio/engine.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace terrace {

enum class FaultKind : uint8_t {
  kNone,
  kError,          // -error; nothing reaches the engine below
  kErrorAfter,     // -error, but the bytes were moved
  kShort,          // half of the bytes (multiples of 512) are moved
  kZero,           // nothing is moved, result 0: the end of the file
  kDelay,          // delivered `delay` late
  kReorder,        // delivered after the next other result, or `delay` late
  kBitFlip,        // one bit of a read buffer, or of what a write stores
  kNever,          // the request is held back until the plan's Release or
                   // Clear; only then does the engine below touch its buffer
  kPartialSubmit,  // Submit takes only what came before it, this once
};

struct Fault {
  FaultKind kind = FaultKind::kNone;
  int error = EIO;
  absl::Duration delay = absl::Milliseconds(5);
  int64_t flipped_byte = -1;  // of the request's; -1: any, drawn
};

// Chances, each of 0 to 1, drawn once per call from the plan's seed.
struct FaultChances {
  double error = 0;
  double again = 0;  // EAGAIN, or EINTR
  double no_space = 0;
  double short_transfer = 0;
  double delay = 0;
  double reorder = 0;
  double bit_flip = 0;
  double never = 0;
  double partial_submit = 0;
};

enum class CallFilter : uint8_t { kAny, kReads, kWrites };

// Shared by the test and the engine. Thread-safe.
class FaultPlan {
 public:
  explicit FaultPlan(uint64_t seed = 1) : random_(seed) {}

  // The n-th call from here on (from 1, of those the filter takes) gets the
  // fault; `times` successive ones do.
  void FailCall(int64_t n, const Fault& fault,
                CallFilter filter = CallFilter::kAny, int64_t times = 1);
  // The n-th call gets the fault, and so does every later one of its direction
  // that touches the same bytes of its file.
  void FailPlace(int64_t n, const Fault& fault,
                 CallFilter filter = CallFilter::kAny);
  void FailAll(const Fault& fault, CallFilter filter = CallFilter::kAny) {
    FailCall(1, fault, filter, INT64_MAX / 2);
  }
  // Every call from here on of that file, as the engine counts its files.
  void FailFile(int file, const Fault& fault,
                CallFilter filter = CallFilter::kAny);
  void SetChances(const FaultChances& chances);

  // No more faults, counts from 0 again; what `never` holds back is let go.
  void Clear();
  // Lets go what `never` holds back; the faults stay.
  void Release();

  int64_t calls(CallFilter filter = CallFilter::kAny) const;
  int64_t faults() const;  // given out since the last Clear
  // The request that got the first of those; its data must not be touched.
  IoRequest first_disturbed() const;

  // For the engine: counts one call and says what happens to it.
  Fault Next(const IoRequest& request);
  // For the engine: how often Release or Clear was called.
  int64_t releases() const;
  uint64_t Draw();

 private:
  int64_t Count(CallFilter filter) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  struct Aimed {
    int64_t first = 0;
    int64_t times = 0;
    CallFilter filter = CallFilter::kAny;
    Fault fault;
    bool keeps_place = false;
  };
  struct File {
    int file = 0;
    CallFilter filter = CallFilter::kAny;
    Fault fault;
  };
  static bool Takes(CallFilter filter, const IoRequest& request);
  // Bytes of a file that fail for good.
  struct Place {
    IoRequest request;
    Fault fault;
  };
  Fault Choose(const IoRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Fault Random(IoDirection direction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::vector<Aimed> aimed_ ABSL_GUARDED_BY(mutex_);
  std::vector<Place> places_ ABSL_GUARDED_BY(mutex_);
  std::vector<File> files_ ABSL_GUARDED_BY(mutex_);
  IoRequest first_disturbed_ ABSL_GUARDED_BY(mutex_);
  FaultChances chances_ ABSL_GUARDED_BY(mutex_);
  bool random_faults_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t calls_[2] ABSL_GUARDED_BY(mutex_) = {};
  int64_t faults_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t releases_ ABSL_GUARDED_BY(mutex_) = 0;
};

// `clock` must outlive the engine. Used by one thread, like every engine;
// Wake is thread-safe. Wait notices a Release only when woken: call Wake.
std::unique_ptr<IoEngine> MakeFaultEngine(std::unique_ptr<IoEngine> engine,
                                          std::shared_ptr<FaultPlan> plan,
                                          Clock& clock);

}  // namespace terrace
