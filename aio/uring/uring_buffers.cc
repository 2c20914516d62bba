#include "aio/uring/uring_buffers.h"

#include <liburing.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace {
namespace {

constexpr int64_t kSlotBytes = int64_t{1} << 30;

}  // namespace

void UringBuffers::Register(io_uring* ring, absl::Span<std::byte> arena) {
  TERRACE_CHECK(arena_.empty());  // once
  std::vector<iovec> slots;
  const auto size = static_cast<int64_t>(arena.size());
  huge_bytes_ = RoundDown(size, kHugePageBytes);
  for (int64_t at = 0; at < huge_bytes_; at += kSlotBytes) {
    slots.push_back({arena.data() + at, static_cast<size_t>(std::min(
                                            kSlotBytes, huge_bytes_ - at))});
  }
  if (huge_bytes_ < size) {
    slots.push_back(
        {arena.data() + huge_bytes_, static_cast<size_t>(size - huge_bytes_)});
  }
  if (slots.empty()) return;
  arena_ = arena;
  const auto count = static_cast<unsigned>(slots.size());
  registered_.assign(slots.size(), false);
  if (io_uring_register_buffers_sparse(ring, count) != 0) {
    error_ = -io_uring_register_buffers(ring, slots.data(), count);
    if (error_ != 0) return;
    registered_.assign(slots.size(), true);
    registered_bytes_ = static_cast<int64_t>(arena.size());
    return;
  }
  for (unsigned i = 0; i < count; ++i) {
    const int updated =
        io_uring_register_buffers_update_tag(ring, i, &slots[i], nullptr, 1);
    if (updated != 1) {
      error_ = updated < 0 ? -updated : ENOMEM;
      return;
    }
    registered_[i] = true;
    registered_bytes_ += static_cast<int64_t>(slots[i].iov_len);
  }
}

int UringBuffers::SlotOf(const IoRequest& request) const {
  if (registered_bytes_ == 0 || request.data < arena_.data()) return -1;
  const int64_t at = request.data - arena_.data();
  const int64_t end = at + request.size_bytes;
  if (end > static_cast<int64_t>(arena_.size())) return -1;
  const size_t slot = SlotAt(at);
  const bool is_within = SlotAt(end - 1) == slot;
  return is_within && registered_[slot] ? static_cast<int>(slot) : -1;
}

size_t UringBuffers::SlotAt(int64_t place) const {
  return place < huge_bytes_ ? static_cast<size_t>(place / kSlotBytes)
                             : registered_.size() - 1;
}

int64_t UringBuffers::BytesOf(size_t slot) const {
  const int64_t begin = static_cast<int64_t>(slot) * kSlotBytes;
  const auto size = static_cast<int64_t>(arena_.size());
  return begin < huge_bytes_ ? std::min(kSlotBytes, huge_bytes_ - begin)
                             : size - huge_bytes_;
}

UringBuffers::Slots UringBuffers::SlotsOf(absl::Span<std::byte> part) const {
  // The arena may have grown since, and the part begin or end behind it.
  const std::byte* const begin = std::max(part.begin(), arena_.begin());
  const std::byte* const end = std::min(part.end(), arena_.end());
  if (registered_.empty() || begin >= end) return {};
  return {SlotAt(begin - arena_.data()), SlotAt(end - 1 - arena_.data()) + 1};
}

bool UringBuffers::HasSome(const Slots& slots) const {
  for (size_t i = slots.first; i < slots.end; ++i) {
    if (registered_[i]) return true;
  }
  return false;
}

bool UringBuffers::Unregister(io_uring* ring, absl::Span<std::byte> part) {
  const Slots slots = SlotsOf(part);
  if (!HasSome(slots)) return true;
  if (io_uring_sq_ready(ring) > 0) return false;
  const iovec nothing = {};
  for (size_t i = slots.first; i < slots.end; ++i) {
    if (!registered_[i]) continue;
    const int updated = io_uring_register_buffers_update_tag(
        ring, static_cast<unsigned>(i), &nothing, nullptr, 1);
    if (updated != 1) {
      // Kernels before 5.13 have all or nothing.
      if (io_uring_unregister_buffers(ring) != 0) return false;
      registered_.assign(registered_.size(), false);
      registered_bytes_ = 0;
      return true;
    }
    registered_[i] = false;
    registered_bytes_ -= BytesOf(i);
  }
  return true;
}

}  // namespace terrace
