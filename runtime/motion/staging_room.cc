#include "runtime/motion/staging_room.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {

class StagingRoom::Range final : public Reserver {
 public:
  Range(Reservation room, int64_t stride, int slots)
      : room_(std::move(room)),
        stride_(stride),
        slots_(static_cast<size_t>(2 * slots)) {
    TERRACE_CHECK(room_.extent().size_bytes == 2 * slots * stride);
  }

  TierId id() const override { return room_.tier(); }
  void Free(Extent extent) override { slots_[IndexOf(extent)] = {}; }

  Reservation Take(Way way, int64_t size_bytes) {
    if (!Serves(size_bytes)) return {};
    for (size_t i = First(way); i < First(way) + slots_.size() / 2; ++i) {
      if (slots_[i].taken) continue;
      slots_[i].taken = true;
      const int64_t offset = static_cast<int64_t>(i) * stride_;
      return {this, {room_.extent().offset + offset, size_bytes}};
    }
    return {};
  }
  // Whether one of its slots serves now or will; `late`: why one does not.
  bool MayServe(Way way, int64_t size_bytes, absl::Status* late) const {
    if (!Serves(size_bytes)) return false;
    for (size_t i = First(way); i < First(way) + slots_.size() / 2; ++i) {
      if (slots_[i].late.ok()) return true;
      late->Update(slots_[i].late);
    }
    return false;
  }
  void SetLate(const Extent& extent, absl::Status why) {
    slots_[IndexOf(extent)].late = std::move(why);
  }

  void Close() { is_open_ = false; }
  bool is_open() const { return is_open_; }
  bool empty() const {
    return std::none_of(slots_.begin(), slots_.end(),
                        [](const Slot& slot) { return slot.taken; });
  }
  int64_t size_bytes() const { return room_.extent().size_bytes; }

 private:
  struct Slot {
    bool taken = false;
    absl::Status late;
  };

  bool Serves(int64_t size_bytes) const {
    return is_open_ && size_bytes <= stride_;
  }
  size_t First(Way way) const {
    return way == Way::kUp ? 0 : slots_.size() / 2;
  }
  size_t IndexOf(const Extent& extent) const {
    return static_cast<size_t>((extent.offset - room_.extent().offset) /
                               stride_);
  }

  const Reservation room_;
  const int64_t stride_;
  std::vector<Slot> slots_;  // those up, then those down
  bool is_open_ = true;
};

StagingRoom::Lease::~Lease() {
  if (range_ != nullptr) range_->Close();
}

StagingRoom::StagingRoom() = default;
StagingRoom::~StagingRoom() = default;

StagingRoom::Lease StagingRoom::Open(Reservation room, int64_t stride,
                                     int slots) {
  ranges_.push_back(std::make_unique<Range>(std::move(room), stride, slots));
  return Lease(ranges_.back().get());
}

Reservation StagingRoom::Take(Way way, int64_t size_bytes) {
  for (const auto& range : ranges_) {
    Reservation slot = range->Take(way, size_bytes);
    if (!slot.empty()) return slot;
  }
  return {};
}

absl::Status StagingRoom::Hope(Way way, int64_t size_bytes) const {
  absl::Status late;
  for (const auto& range : ranges_) {
    if (range->MayServe(way, size_bytes, &late)) return absl::OkStatus();
  }
  if (!late.ok()) return late;
  return absl::CancelledError("the queue whose staging it needs was closed");
}

void StagingRoom::SetLate(const Reservation& slot, absl::Status why) {
  for (const auto& range : ranges_) {
    if (range.get() == slot.from()) {
      range->SetLate(slot.extent(), std::move(why));
    }
  }
}

void StagingRoom::Sweep() {
  std::erase_if(ranges_, [](const std::unique_ptr<Range>& range) {
    return !range->is_open() && range->empty();
  });
}

int64_t StagingRoom::size_bytes() const {
  int64_t bytes = 0;
  for (const auto& range : ranges_) bytes += range->size_bytes();
  return bytes;
}

int64_t StagingRoom::open_bytes() const {
  int64_t bytes = 0;
  for (const auto& range : ranges_) {
    if (range->is_open()) bytes += range->size_bytes();
  }
  return bytes;
}

}  // namespace terrace
