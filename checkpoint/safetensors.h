// The header of a safetensors file: a little-endian u64 with the length of a
// JSON object, the object padded with spaces to a multiple of 8, then the
// tensors' bytes, without gaps, at the object's data_offsets.
// Format: github.com/huggingface/safetensors, README, "Format".
//
// Pure functions and plain values. Offsets and sizes are bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "terrace/stored_dtype.h"

namespace terrace {

struct SafetensorsEntry {
  std::string name;
  StoredDType dtype = StoredDType::kFloat32;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // in the file
  int64_t size_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // by offset
  int64_t header_bytes = 0;               // the length included
  int64_t file_bytes = 0;
};

// What a reader may take the first 8 bytes to mean; more is no header.
inline constexpr int64_t kLongestSafetensorsHeader = 100'000'000;
inline constexpr int64_t kSafetensorsLengthBytes = 8;

// Lays the tensors out in their order, wider dtypes first, so that each lies
// aligned in a mapped file; fills in their offsets and sizes. Returns the
// header's bytes. InvalidArgument: a name that is empty, reserved, no UTF-8 or
// there twice; a shape that is negative or beyond 2^62 bytes.
absl::StatusOr<std::string> MakeSafetensorsHeader(
    std::vector<SafetensorsEntry> tensors, SafetensorsHeader* header);

// `text`: the JSON behind the length. InvalidArgument: no header, what is
// wrong with it, a key that is there twice, or a dtype that has no
// StoredDType.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    absl::string_view text);

// Elements; -1: negative or too many.
int64_t ElementCount(absl::Span<const int64_t> shape);

// "fp32 [3, 4]".
std::string ShapeText(StoredDType dtype, absl::Span<const int64_t> shape);

}  // namespace terrace
