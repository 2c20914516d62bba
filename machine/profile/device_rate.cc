#include "machine/profile/device_rate.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "aio/engine.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr int64_t kStreamPiece = 4 << 20;
constexpr int64_t kStreamBytes = 64 << 20;
constexpr size_t kLeastStreamTurns = 3;

// All of the bytes, one piece behind the other in the stream; seconds.
absl::StatusOr<double> Turn(Device::Stream& stream, IoDirection direction,
                            std::byte* device, std::byte* host) {
  const absl::Time begin = SystemClock().Now();
  for (int64_t at = 0; at < kStreamBytes; at += kStreamPiece) {
    TERRACE_RETURN_IF_ERROR(
        direction == IoDirection::kRead
            ? stream.CopyToHost(host + at, device + at, kStreamPiece)
            : stream.CopyToDevice(device + at, host + at, kStreamPiece));
  }
  TERRACE_RETURN_IF_ERROR(stream.Wait());
  return absl::ToDoubleSeconds(SystemClock().Now() - begin);
}

absl::StatusOr<double> Measure(Device::Stream& stream, IoDirection direction,
                               std::byte* device, std::byte* host,
                               absl::Duration time) {
  const absl::Time end = SystemClock().Now() + time;
  std::vector<double> rates;
  while (rates.size() < kLeastStreamTurns || SystemClock().Now() < end) {
    TERRACE_ASSIGN_OR_RETURN(const double seconds,
                             Turn(stream, direction, device, host));
    if (seconds > 0)
      rates.push_back(static_cast<double>(kStreamBytes) / seconds);
  }
  const auto middle = rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

}  // namespace

absl::StatusOr<MediumRates> MeasureDevice(Device& device, absl::Duration time) {
  TERRACE_ASSIGN_OR_RETURN(const DeviceMemory memory,
                           device.Allocate(kStreamBytes));
  TERRACE_ASSIGN_OR_RETURN(const PinnedMemory host,
                           device.AllocatePinned(kStreamBytes));
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Device::Stream> stream,
                           device.MakeStream());
  auto* const there = static_cast<std::byte*>(memory.get());
  MediumRates rates;
  TERRACE_ASSIGN_OR_RETURN(
      rates.write_bytes_per_second,
      Measure(*stream, IoDirection::kWrite, there, host.get(), time));
  TERRACE_ASSIGN_OR_RETURN(
      rates.read_bytes_per_second,
      Measure(*stream, IoDirection::kRead, there, host.get(), time));
  return rates;
}

}  // namespace terrace
