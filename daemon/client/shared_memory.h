// The memory that a daemon has made for this process: its memory file, mapped.
// A forked child has no such mapping.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/process.h"

namespace terrace {

// How long a daemon may take to make pages of so many bytes.
inline absl::Duration PopulationPatience(int64_t bytes) {
  constexpr double kSecondsPerByte = 4.0 / (1 << 30);
  return absl::Seconds(kSecondsPerByte *
                       static_cast<double>(std::max<int64_t>(bytes, 0)));
}

// 0: it is none.
uint64_t FileNumberOf(const OwnDescriptor& file);

class SharedMemory {
 public:
  // Maps `file_bytes`, of which the first `used_bytes` have memory.
  // InvalidArgument: the file has another size, or one that may change;
  // ResourceExhausted: there are no such addresses.
  static absl::StatusOr<SharedMemory> Map(const OwnDescriptor& file,
                                          int64_t file_bytes,
                                          int64_t used_bytes);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) = delete;

  absl::Span<std::byte> bytes() const { return bytes_; }
  // Of its file, which no other that is there has.
  uint64_t file_number() const { return file_number_; }

 private:
  explicit SharedMemory(absl::Span<std::byte> bytes) : bytes_(bytes) {}

  const Process process_;
  absl::Span<std::byte> bytes_;
  uint64_t file_number_ = 0;
};

}  // namespace terrace
