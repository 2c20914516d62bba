// Any disk tier with a file system that hangs or is full.
//
//   auto faults = std::make_shared<DiskFaults>();
//   tier = MakeFaultDiskFile(std::move(tier), faults);
//   faults->Hang();        // Grow and Remove do not return
//   faults->Clear();       // now they do
//
// A tier in memory, whose space is all there from the start, is dealt out as
// if its file grew: exactly by what is asked for, up to what it has.
#pragma once

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/io_fault.h"
#include "base/mutex.h"
#include "tiers/disk/disk_file.h"

namespace terrace {

// Shared by the test and the tier. Thread-safe.
class DiskFaults {
 public:
  void Hang() { Set(true, false); }
  void Fill() { Set(false, true); }  // Grow is ENOSPC
  void Clear() { Set(false, false); }

  bool hangs() const {
    MutexLock lock(mutex_);
    return hangs_;
  }
  int growths() const {  // begun
    MutexLock lock(mutex_);
    return growths_;
  }

  // For the tier: returns when nothing hangs; whether the disk is full.
  bool Enter(bool grows) {
    MutexLock lock(mutex_);
    growths_ += grows ? 1 : 0;
    SystemClock().Await(
        mutex_, changed_,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !hangs_; },
        absl::InfiniteFuture());
    return full_;
  }

 private:
  void Set(bool hangs, bool full) {
    MutexLock lock(mutex_);
    hangs_ = hangs;
    full_ = full;
    changed_.SignalAll();
  }

  mutable Mutex mutex_;
  CondVar changed_;
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  int growths_ ABSL_GUARDED_BY(mutex_) = 0;
};

class FaultDiskFile final : public DiskFile {
 public:
  FaultDiskFile(std::unique_ptr<DiskFile> tier,
                std::shared_ptr<DiskFaults> faults)
      : tier_(std::move(tier)),
        faults_(std::move(faults)),
        dealt_out_(tier_->capacity_bytes() > 0) {}

  absl::StatusOr<Extent> Allocate(int64_t size_bytes) override {
    if (dealt_out_ && used_bytes() + size_bytes > grown_bytes_) {
      return absl::ResourceExhaustedError("the file must grow");
    }
    return tier_->Allocate(size_bytes);
  }
  void Free(Extent extent) override { tier_->Free(extent); }
  bool TakeAt(const Extent& range) override { return tier_->TakeAt(range); }
  std::optional<KeptFile> Keep() const override { return tier_->Keep(); }

  absl::StatusOr<Growth> GrowthFor(int64_t size_bytes) const override {
    const int64_t need = used_bytes() + size_bytes - grown_bytes_;
    if (!dealt_out_ || grown_bytes_ + need > tier_->capacity_bytes()) {
      return tier_->GrowthFor(size_bytes);
    }
    return Growth{.offset = grown_bytes_, .least_bytes = need, .bytes = need};
  }
  absl::StatusOr<int64_t> Grow(const Growth& growth) override {
    if (faults_->Enter(/*grows=*/true)) {
      return WithIoFault(
          absl::ResourceExhaustedError(
              absl::StrCat(info().file, ": cannot preallocate ", growth.bytes,
                           " bytes: ENOSPC")),
          {.error = ENOSPC, .path = info().file, .offset = growth.offset});
    }
    if (dealt_out_) return growth.bytes;
    return tier_->Grow(growth);
  }
  void AddSpace(int64_t size_bytes) override {
    grown_bytes_ += size_bytes;
    if (!dealt_out_) tier_->AddSpace(size_bytes);
  }
  bool reclaims() const override { return tier_->reclaims(); }
  bool Reclaim() override { return tier_->Reclaim(); }
  int64_t growth_progress() const override { return tier_->growth_progress(); }

  int fd() const override { return tier_->fd(); }
  int64_t capacity_bytes() const override { return tier_->capacity_bytes(); }
  int64_t used_bytes() const override { return tier_->used_bytes(); }
  const DiskFileInfo& info() const override { return tier_->info(); }
  absl::Status Remove() override {
    faults_->Enter(/*grows=*/false);
    return tier_->Remove();
  }

 private:
  const std::unique_ptr<DiskFile> tier_;
  const std::shared_ptr<DiskFaults> faults_;
  const bool dealt_out_;
  int64_t grown_bytes_ = 0;
};

inline std::unique_ptr<DiskFile> MakeFaultDiskFile(
    std::unique_ptr<DiskFile> tier, std::shared_ptr<DiskFaults> faults) {
  return std::make_unique<FaultDiskFile>(std::move(tier), std::move(faults));
}

}  // namespace terrace
