#include "base/device.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/io_fault.h"

namespace terrace {

absl::Status Device::Stream::OnDone(std::function<void()> /*run*/) {
  return absl::UnimplementedError("this device does not tell when it is done");
}

absl::StatusOr<DeviceMemory> Device::Allocate(int64_t bytes) {
  return absl::UnimplementedError(absl::StrCat(
      name(), ": ", bytes, " bytes asked of a device that gives no memory"));
}

absl::StatusOr<PinnedMapping> Device::Pin(std::shared_ptr<const void> mapping,
                                          absl::Span<std::byte> bytes,
                                          int64_t piece_bytes) {
  TERRACE_CHECK(mapping != nullptr && !bytes.empty() && piece_bytes > 0);
  // On an error what is registered goes with this, before the mapping.
  PinnedMapping pinned(std::move(mapping), bytes);
  const auto total = static_cast<int64_t>(bytes.size());
  for (int64_t begin = 0; begin < total; begin += piece_bytes) {
    const int64_t size = std::min(piece_bytes, total - begin);
    absl::StatusOr<HostRegistration> piece = Register(
        bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(size)));
    if (!piece.ok()) {
      return Reworded(
          piece.status(),
          absl::StrCat("pinning bytes ", begin, " to ", begin + size, " of ",
                       total, ": ", piece.status().message()));
    }
    pinned.Add(*std::move(piece));
  }
  return pinned;
}

absl::StatusOr<HostRegistration> Device::Register(
    absl::Span<std::byte> /*piece*/) {
  return absl::UnimplementedError(
      absl::StrCat(name(), ": this device registers no host memory"));
}

}  // namespace terrace
