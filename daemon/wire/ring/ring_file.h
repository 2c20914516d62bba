// The memory file of a connection's two rings, requests one way and news the
// other. The daemon makes it, sealed in size, and the process that it is sent
// to maps it; no child of either has it mapped.
//
// It belongs to whoever uses the rings: they end before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/process.h"
#include "daemon/wire/ring/packet_ring.h"

namespace terrace {

// Of the file, of both sides.
inline constexpr int64_t kRingFileBytes =
    2 * (int64_t{kRingBytes} + int64_t{4096});

// What lies in such a file.
struct Rings {
  RingView requests;
  RingView news;

  static Rings In(absl::Span<std::byte> file);
};

class RingFile {
 public:
  // ResourceExhausted: there is no descriptor or memory.
  static absl::StatusOr<RingFile> Make();
  ~RingFile();
  RingFile(RingFile&& other) noexcept
      : file_(std::move(other.file_)),
        bytes_(std::exchange(other.bytes_, {})) {}
  RingFile& operator=(RingFile&&) = delete;

  const OwnDescriptor& file() const { return file_; }
  Rings rings() const { return Rings::In(bytes_); }

 private:
  explicit RingFile(OwnDescriptor file) : file_(std::move(file)) {}

  OwnDescriptor file_;
  absl::Span<std::byte> bytes_;
};

}  // namespace terrace
