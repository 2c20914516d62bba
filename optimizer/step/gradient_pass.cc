#include "optimizer/step/gradient_pass.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "kernels/checksum.h"
#include "kernels/norm.h"

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
      if (gradient.device != nullptr) on_devices_.push_back(slices_.size());
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
  TERRACE_CHECK(executor_ == nullptr);
  TERRACE_CHECK(staging != nullptr || on_devices_.empty());
  executor_ = &executor;
  meter_ = &meter;
  staging_ = staging;
  const size_t lanes = std::min<size_t>(on_devices_.size(), Staging::kSlots);
  while (lanes_.size() < lanes) {
    lanes_.push_back(std::make_unique<Lane>(staging->Take()));
  }
  // Copies begin first: they run beside what is summed here.
  for (const auto& lane : lanes_) AdvanceLane(*lane);
  const int tasks = static_cast<int>(
      std::min<size_t>(static_cast<size_t>(executor.parallelism()),
                       slices_.size() - on_devices_.size()));
  if (tasks == 0) return;
  meter.Start(tasks);
  for (int i = 0; i < tasks; ++i) {
    executor.Run([this] {
      Work();
      meter_->End();
    });
  }
}

void GradientPass::Work() {
  while (true) {
    // Relaxed: it only shares out the slices.
    const size_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= slices_.size()) break;
    const GradientData& gradient = slices_[i].gradient;
    if (gradient.values == nullptr || gradient.device != nullptr) continue;
    Sum(slices_[i], i, gradient.values);
  }
}

bool GradientPass::Advance() {
  bool busy = false;
  for (const auto& lane : lanes_) {
    AdvanceLane(*lane);
    busy |= lane->state != Lane::State::kFree;
  }
  if (busy || meter_->running() > 0) return false;
  ReturnSlots();
  return true;
}

void GradientPass::AdvanceLane(Lane& lane) {
  // Acquire: its task reads the slot no more.
  if (lane.state == Lane::State::kSumming &&
      lane.summed.load(std::memory_order_acquire)) {
    lane.state = Lane::State::kFree;
  }
  if (lane.state == Lane::State::kFree && status_.ok() &&
      next_on_device_ < on_devices_.size()) {
    BeginCopy(lane);
  }
  if (lane.state != Lane::State::kArriving) return;
  const std::optional<absl::Status> arrived = lane.slot.Poll();
  if (!arrived.has_value()) return;
  status_.Update(*arrived);
  if (status_.ok()) {
    SumOnExecutor(lane);
  } else {
    lane.state = Lane::State::kFree;
  }
  meter_->End();
}

void GradientPass::BeginCopy(Lane& lane) {
  lane.slice = on_devices_[next_on_device_++];
  const GradientData& gradient = slices_[lane.slice].gradient;
  const int64_t bytes = gradient.count * DTypeBytes(gradient.dtype);
  TERRACE_CHECK(bytes <= kSlotBytes);
  const absl::Status begun = lane.slot.CopyToHost(
      *gradient.device, lane.slot.bytes(), gradient.values, bytes);
  status_.Update(begun);
  if (!begun.ok()) return;
  lane.state = Lane::State::kArriving;
  meter_->Start(1);
}

void GradientPass::SumOnExecutor(Lane& lane) {
  lane.state = Lane::State::kSumming;
  lane.summed.store(false, std::memory_order_relaxed);
  meter_->Start(1);
  executor_->Run([this, &lane] {
    Sum(slices_[lane.slice], lane.slice, lane.slot.bytes());
    lane.summed.store(true, std::memory_order_release);
    meter_->End();
  });
}

bool GradientPass::IsArriving() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
    return lane->state == Lane::State::kArriving;
  });
}

void GradientPass::Wait() {
  const int64_t ended = meter_->ended();
  if (IsArriving()) {
    meter_->WaitForEnd(ended, kCopyLook);
  } else {
    meter_->WaitForEnd(ended);
  }
}

void GradientPass::WaitForTasks() {
  if (meter_ == nullptr) return;
  for (const auto& lane : lanes_) {
    if (lane->state != Lane::State::kArriving) continue;
    lane->slot.Wait();
    meter_->End();
  }
  meter_->WaitForAll();
  ReturnSlots();
}

void GradientPass::ReturnSlots() {
  for (const auto& lane : lanes_) staging_->Return(lane->slot);
  lanes_.clear();
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

double GradientPass::SquaredNorm() const {
  double sum = 0;
  for (double block : sums_) sum += block;
  return sum;
}

uint64_t GradientPass::Fingerprint() const {
  return Checksum(hashes_.data(), hashes_.size() * sizeof(uint64_t));
}

}  // namespace terrace
