#include "tests/support/device/device_bytes.h"

#include <sys/mman.h>

#include <iterator>
#include <new>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace terrace {
std::byte* ReserveAddresses(int64_t bytes) {
  void* const address =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TERRACE_CHECK(address != MAP_FAILED);
  return static_cast<std::byte*>(address);
}

DeviceBytes::DeviceBytes(std::string name, int64_t capacity_bytes)
    : name_(std::move(name)),
      capacity_bytes_(capacity_bytes),
      addresses_(ReserveAddresses(capacity_bytes)),
      memory_(static_cast<size_t>(capacity_bytes)),
      space_(capacity_bytes) {}

DeviceBytes::~DeviceBytes() {
  munmap(addresses_, static_cast<size_t>(capacity_bytes_));
}

absl::StatusOr<DeviceMemory> DeviceBytes::Allocate(int64_t bytes) {
  MutexLock lock(mutex_);
  const absl::StatusOr<Extent> extent = space_.Allocate(bytes);
  if (!extent.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        name_, ": out of memory: ", bytes, " bytes asked for, ",
        space_.free_bytes(), " of ", capacity_bytes_, " are free"));
  }
  blocks_[extent->offset] = bytes;
  return DeviceMemory(addresses_ + extent->offset,
                      [self = shared_from_this(), extent = *extent](void*) {
                        MutexLock free_lock(self->mutex_);
                        self->blocks_.erase(extent.offset);
                        self->space_.Free(extent);
                      });
}

absl::StatusOr<HostRegistration> DeviceBytes::Register(
    absl::Span<std::byte> piece) {
  MutexLock lock(mutex_);
  const auto after = pins_.lower_bound(piece.data());
  const bool meets_next =
      after != pins_.end() && after->first < piece.data() + piece.size();
  const bool meets_last =
      after != pins_.begin() &&
      std::prev(after)->first + std::prev(after)->second > piece.data();
  if (meets_next || meets_last) {
    return absl::UnavailableError(
        absl::StrCat(name_, ": host memory that is registered already"));
  }
  pins_[piece.data()] = static_cast<int64_t>(piece.size());
  return HostRegistration(
      piece.data(), [self = shared_from_this()](void* address) {
        MutexLock end_lock(self->mutex_);
        if (self->pins_.erase(static_cast<std::byte*>(address)) == 0) {
          self->Note("a registration ends twice");
        }
      });
}

std::byte* DeviceBytes::At(const void* address, int64_t bytes) {
  const int64_t offset = static_cast<const std::byte*>(address) - addresses_;
  MutexLock lock(mutex_);
  const auto after = blocks_.upper_bound(offset);
  if (after != blocks_.begin()) {
    const auto& [begin, size] = *std::prev(after);
    if (offset >= begin && offset + bytes <= begin + size) {
      return memory_.data() + offset;
    }
  }
  Note(absl::StrCat("offset ", offset, ", ", bytes,
                    " bytes: not of one block of the device"));
  return nullptr;
}

void DeviceBytes::CheckPinned(const std::byte* host, int64_t bytes) {
  MutexLock lock(mutex_);
  if (!requires_pins_) return;
  const std::byte* next = host;
  while (next < host + bytes) {
    const auto after = pins_.upper_bound(next);
    if (after == pins_.begin()) break;
    const auto& [begin, size] = *std::prev(after);
    if (begin + size <= next) break;
    next = begin + size;
  }
  if (next < host + bytes) Note("a copy of memory that is not registered");
}

void DeviceBytes::RequirePins() {
  MutexLock lock(mutex_);
  requires_pins_ = true;
}

int64_t DeviceBytes::used_bytes() const {
  MutexLock lock(mutex_);
  return space_.used_bytes();
}

int64_t DeviceBytes::registered_pieces() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(pins_.size());
}

std::vector<std::string> DeviceBytes::violations() const {
  MutexLock lock(mutex_);
  return violations_;
}

void DeviceBytes::Note(std::string violation) {
  violations_.push_back(std::move(violation));
}

PinnedMemory PlainPinnedMemory(int64_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  auto* const memory = static_cast<std::byte*>(
      ::operator new(static_cast<size_t>(bytes), kAlignment));
  return PinnedMemory(
      memory, [=](std::byte* given) { ::operator delete(given, kAlignment); });
}

}  // namespace terrace
