#include "runtime/optimizer/gradient_pass.h"

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

GradientPass::GradientPass(Kind kind, absl::Span<const Gradient> gradients)
    : kind_(kind) {
  int64_t blocks = 0;
  for (const Gradient& gradient : gradients) {
    if (gradient.values == nullptr) {
      // Says which gradients there are; nothing is read.
      if (kind == Kind::kFingerprint) {
        slices_.push_back({{nullptr, gradient.dtype, 0}, blocks, 0});
      }
      continue;
    }
    for (int64_t i = 0; i < gradient.count; i += kSliceElements) {
      const int64_t count = std::min(kSliceElements, gradient.count - i);
      const auto* bytes = static_cast<const std::byte*>(gradient.values);
      slices_.push_back(
          {{bytes + i * DTypeBytes(gradient.dtype), gradient.dtype, count},
           blocks,
           NormBlocks(count)});
      blocks += NormBlocks(count);
    }
  }
  if (kind == Kind::kNorm) sums_.resize(static_cast<size_t>(blocks));
  if (kind == Kind::kFingerprint) hashes_.resize(slices_.size());
}

void GradientPass::Launch(Executor& executor, StepMeter& meter) {
  TERRACE_CHECK(next_ == 0);
  const int tasks = static_cast<int>(std::min<size_t>(
      static_cast<size_t>(executor.parallelism()), slices_.size()));
  if (tasks == 0) return;
  meter.Start(tasks);
  for (int i = 0; i < tasks; ++i) {
    executor.Run([this, &meter] {
      Work();
      meter.End();
    });
  }
}

void GradientPass::Work() {
  while (true) {
    // Relaxed: it only shares out the slices.
    const size_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= slices_.size()) return;
    const Slice& slice = slices_[i];
    if (kind_ == Kind::kNorm) {
      SumSquaresOfBlocks(
          slice.gradient.values, slice.gradient.dtype, slice.gradient.count,
          absl::MakeSpan(sums_).subspan(static_cast<size_t>(slice.first_block),
                                        static_cast<size_t>(slice.blocks)));
    } else if (slice.gradient.values != nullptr) {
      hashes_[i] =
          Checksum(slice.gradient.values,
                   static_cast<size_t>(slice.gradient.count *
                                       DTypeBytes(slice.gradient.dtype)));
    }
  }
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
