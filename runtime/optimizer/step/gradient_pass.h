// One pass over all gradients of a step on the executor: their norm, or a
// fingerprint of their bits. The result depends on the gradients only, not on
// threads or order.
//
//   GradientPass pass(GradientPass::Kind::kNorm, gradients);
//   pass.Launch(executor, meter);
//   ... meter.running() == 0 ...
//   double squared = pass.SquaredNorm();
//
// Owned by the customer's thread; must outlive its tasks, which are counted by
// the meter. The gradients are the caller's and are only read.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/base/device.h"
#include "runtime/base/executor.h"
#include "runtime/base/mutex.h"
#include "runtime/optimizer/step/staging.h"
#include "runtime/optimizer/step/step_meter.h"
#include "terrace/optimizer.h"

namespace terrace {

class GradientPass {
 public:
  // What the staging slots must hold for gradients on a device.
  static constexpr int64_t kSlotBytes = 1 << 20;

  enum class Kind : uint8_t { kNorm, kFingerprint };

  GradientPass(Kind kind, absl::Span<const GradientData> gradients);
  GradientPass(const GradientPass&) = delete;
  GradientPass& operator=(const GradientPass&) = delete;

  // Hands at most executor.parallelism() tasks over. Once. `staging`, in which
  // every slot is free, for gradients on devices: each task then has a slot,
  // and one is computed while others are on their way.
  void Launch(Executor& executor, StepMeter& meter, Staging* staging);

  // After the last task: the first failed copy from a device. The results
  // below mean nothing then.
  absl::Status status() const;
  // The sum of squares of all elements as defined by
  // SquaredNormReference, one gradient after the other; not finite if an
  // element is not.
  double SquaredNorm() const;
  // 64 bits that depend on every bit of the gradients and on which exist.
  uint64_t Fingerprint() const;

 private:
  // What one task takes at a time.
  struct Slice {
    GradientData gradient;
    int64_t first_block;  // index of its first result
    int64_t blocks;
  };

  void Work(Staging* staging);
  // Its values in CPU memory; null after an error.
  const void* Fetch(const GradientData& gradient, StagingSlot* slot);
  void Sum(const Slice& slice, size_t index, const void* values);

  const Kind kind_;
  std::vector<Slice> slices_;
  std::vector<double> sums_;      // kNorm: one for each block of kNormBlock
  std::vector<uint64_t> hashes_;  // kFingerprint: one for each slice
  std::atomic<size_t> next_ = 0;  // results are published by the meter's lock
  mutable Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
