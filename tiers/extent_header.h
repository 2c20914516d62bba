// The 4 KiB in front of every extent's payload on disk: it describes itself,
// so a misdirected, stale or torn write is found on the way up.
//
// Little endian, zero padded; its last 8 bytes are the XXH3-64 of all those
// before them. Thread-safe, pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/bytes.h"

namespace terrace {

struct ExtentHeader {
  uint64_t path_id = 0;    // random, of the tier's file
  int64_t own_offset = 0;  // in that file
  int64_t tensor_id = 0;
  uint64_t generation = 0;  // rises with each write of the tensor
  int64_t step = 0;
  int64_t payload_bytes = 0;
  uint64_t payload_hash = 0;  // XXH3-64
  int64_t global_offset = 0;
  std::string name;  // cut to 255 bytes

  friend bool operator==(const ExtentHeader&, const ExtentHeader&) = default;
};

// Random: of one tier, for the headers of what is written there.
uint64_t NewSealId();

// `block` is kTensorHeaderBytes long.
void EncodeExtentHeader(const ExtentHeader& header,
                        absl::Span<std::byte> block);

// DataLoss: magic, format or checksum are wrong.
absl::Status DecodeExtentHeader(absl::Span<const std::byte> block,
                                ExtentHeader* header);

// DataLoss naming the field that differs, with both values. `step` is not
// compared.
absl::Status MatchExtentHeader(const ExtentHeader& found,
                               const ExtentHeader& expected);

}  // namespace terrace
