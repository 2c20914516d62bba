// One pass over all gradients of a step on the executor: their norm, or a
// fingerprint of their bits. The result depends on the gradients only, not on
// threads or order.
//
//   GradientPass pass(GradientPass::Kind::kNorm, gradients);
//   pass.Launch(executor, meter, staging);
//   while (!pass.Advance()) pass.Wait();
//   double squared = pass.SquaredNorm();
//
// Gradients in CPU memory are summed by tasks that take one slice after
// another. A slice on a device is copied into a staging slot first: Advance
// begins the copy, and hands it to the executor once it has arrived; so no task
// waits for a device, and one slice is computed while others are on their way.
//
// Owned by the customer's thread; must outlive its tasks, which are counted by
// the meter, and its copies: WaitForTasks. The gradients are the caller's and
// are only read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "base/executor.h"
#include "optimizer/step/staging.h"
#include "optimizer/step/step_meter.h"
#include "terrace/optimizer.h"

namespace terrace {

class GradientPass {
 public:
  // What the staging slots must hold for gradients on a device.
  static constexpr int64_t kSlotBytes = Staging::kLeastSlotBytes;

  enum class Kind : uint8_t { kNorm, kFingerprint };

  GradientPass(Kind kind, absl::Span<const GradientData> gradients);
  GradientPass(const GradientPass&) = delete;
  GradientPass& operator=(const GradientPass&) = delete;

  // Once. `staging`, in which every slot is free, is for gradients on devices;
  // null: there are none. All three outlive the pass.
  void Launch(Executor& executor, StepMeter& meter, Staging* staging);
  // As far as it goes without blocking. True: all is summed, or a copy has
  // failed and nothing is under way.
  bool Advance();
  // Blocks until Advance can go further.
  void Wait();
  // Blocks until no task runs and no copy is under way; the rest is given up.
  void WaitForTasks();

  // The first failed copy from a device. The results below mean nothing then.
  const absl::Status& status() const { return status_; }
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

  // A staging slot, and the slice that it has.
  struct Lane {
    enum class State : uint8_t { kFree, kArriving, kSumming };
    explicit Lane(StagingSlot& taken) : slot(taken) {}
    StagingSlot& slot;
    State state = State::kFree;
    size_t slice = 0;
    std::atomic<bool> summed = false;  // by its task
  };

  // Sums what is in CPU memory.
  void Work();
  void AdvanceLane(Lane& lane);
  void BeginCopy(Lane& lane);
  void SumOnExecutor(Lane& lane);
  void Sum(const Slice& slice, size_t index, const void* values);
  bool IsArriving() const;
  void ReturnSlots();

  const Kind kind_;
  Executor* executor_ = nullptr;  // from Launch on, as the next
  StepMeter* meter_ = nullptr;
  Staging* staging_ = nullptr;
  std::vector<Slice> slices_;
  std::vector<size_t> on_devices_;  // slices
  size_t next_on_device_ = 0;       // of these
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<double> sums_;      // kNorm: one for each block of kNormBlock
  std::vector<uint64_t> hashes_;  // kFingerprint: one for each slice
  std::atomic<size_t> next_ = 0;  // results are published by the meter's lock
  absl::Status status_;
};

}  // namespace terrace
