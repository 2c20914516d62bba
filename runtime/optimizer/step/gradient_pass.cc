#include "runtime/optimizer/step/gradient_pass.h"

#include <algorithm>

#include "kernels/checksum.h"
#include "kernels/norm.h"
#include "runtime/base/check.h"

namespace terrace {
namespace {

// 1 MiB of fp32: large enough that taking the next costs nothing, small
// enough to share one tensor among the threads.
constexpr int64_t kSliceElements = 64 * kNormBlock;

}  // namespace

GradientPass::GradientPass(Kind kind, absl::Span<const GradientData> gradients)
    : kind_(kind) {
  int64_t blocks = 0;
  for (const GradientData& gradient : gradients) {
    if (gradient.values == nullptr) {
      // Says which gradients there are; nothing is read.
      if (kind == Kind::kFingerprint) {
        slices_.push_back({{nullptr, gradient.dtype, 0, nullptr}, blocks, 0});
      }
      continue;
    }
    for (int64_t i = 0; i < gradient.count; i += kSliceElements) {
      const int64_t count = std::min(kSliceElements, gradient.count - i);
      const auto* bytes = static_cast<const std::byte*>(gradient.values);
      slices_.push_back({{bytes + i * DTypeBytes(gradient.dtype),
                          gradient.dtype, count, gradient.device},
                         blocks,
                         NormBlocks(count)});
      blocks += NormBlocks(count);
    }
  }
  if (kind == Kind::kNorm) sums_.resize(static_cast<size_t>(blocks));
  if (kind == Kind::kFingerprint) hashes_.resize(slices_.size());
}

void GradientPass::Launch(Executor& executor, StepMeter& meter,
                          Staging* staging) {
  TERRACE_CHECK(next_ == 0);
  int tasks = static_cast<int>(std::min<size_t>(
      static_cast<size_t>(executor.parallelism()), slices_.size()));
  if (staging != nullptr) tasks = std::min(tasks, Staging::kSlots);
  if (tasks == 0) return;
  meter.Start(tasks);
  for (int i = 0; i < tasks; ++i) {
    executor.Run([this, &meter, staging] {
      Work(staging);
      meter.End();
    });
  }
}

void GradientPass::Work(Staging* staging) {
  StagingSlot* const slot = staging != nullptr ? &staging->Take() : nullptr;
  while (true) {
    // Relaxed: it only shares out the slices.
    const size_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= slices_.size()) break;
    const GradientData& gradient = slices_[i].gradient;
    if (gradient.values == nullptr) continue;
    const void* const values = Fetch(gradient, slot);
    if (values == nullptr) break;
    Sum(slices_[i], i, values);
  }
  if (slot != nullptr) staging->Return(*slot);
}

const void* GradientPass::Fetch(const GradientData& gradient,
                                StagingSlot* slot) {
  if (gradient.device == nullptr) return gradient.values;
  const int64_t bytes = gradient.count * DTypeBytes(gradient.dtype);
  TERRACE_CHECK(bytes <= kSlotBytes);
  absl::Status status =
      slot->CopyToHost(*gradient.device, slot->bytes(), gradient.values, bytes);
  status.Update(slot->Wait());
  if (status.ok()) return slot->bytes();
  MutexLock lock(mutex_);
  status_.Update(status);
  return nullptr;
}

void GradientPass::Sum(const Slice& slice, size_t index, const void* values) {
  const auto [gradient, first, blocks] = slice;
  if (kind_ == Kind::kNorm) {
    SumSquaresOfBlocks(
        values, gradient.dtype, gradient.count,
        absl::MakeSpan(sums_).subspan(static_cast<size_t>(first),
                                      static_cast<size_t>(blocks)));
  } else {
    hashes_[index] = Checksum(
        values,
        static_cast<size_t>(gradient.count * DTypeBytes(gradient.dtype)));
  }
}

absl::Status GradientPass::status() const {
  MutexLock lock(mutex_);
  return status_;
}

double GradientPass::SquaredNorm() const {
  double sum = 0;
  for (double block : sums_) sum += block;
  return sum;
}

uint64_t GradientPass::Fingerprint() const {
  return Checksum(hashes_.data(), hashes_.size() * sizeof(uint64_t));
}

}  // namespace terrace
