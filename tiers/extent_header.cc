#include "tiers/extent_header.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/checksum.h"

namespace terrace {
namespace {

// "TERRACE" and a zero, read as a little-endian word.
constexpr uint64_t kMagic = 0x0045434152524554;
constexpr uint64_t kFormat = 1;
constexpr size_t kMaxNameBytes = 255;

// The block: little-endian words, then the name, then zeros, then the hash of
// all bytes before it.
enum Word : size_t {
  kMagicWord,
  kFormatWord,
  kPathId,
  kOwnOffset,
  kTensorId,
  kGeneration,
  kStep,
  kPayloadBytes,
  kPayloadHash,
  kGlobalOffset,
  kNameBytes,
  kWords,
};
constexpr size_t kNameAt = kWords * 8;
constexpr size_t kHashAt = kTensorHeaderBytes - 8;
static_assert(kNameAt + kMaxNameBytes <= kHashAt);

void PutWord(absl::Span<std::byte> block, size_t at, uint64_t value) {
  for (size_t i = 0; i < 8; ++i) {
    block[at + i] = static_cast<std::byte>(value >> (8 * i));
  }
}

uint64_t GetWord(absl::Span<const std::byte> block, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) {
    value |= std::to_integer<uint64_t>(block[at + i]) << (8 * i);
  }
  return value;
}

std::string CutName(const std::string& name) {
  return name.substr(0, kMaxNameBytes);
}

absl::Status Wrong(const char* what, uint64_t found, uint64_t expected) {
  return absl::DataLossError(absl::StrCat(
      "extent header: ", what, " is 0x", absl::Hex(found, absl::kZeroPad16),
      ", expected 0x", absl::Hex(expected, absl::kZeroPad16)));
}

template <typename T>
absl::Status Differs(const char* field, const T& found, const T& expected) {
  return absl::DataLossError(absl::StrCat("extent header: ", field, " is ",
                                          found, ", expected ", expected));
}

}  // namespace

uint64_t NewSealId() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

void EncodeExtentHeader(const ExtentHeader& header,
                        absl::Span<std::byte> block) {
  TERRACE_CHECK(block.size() == kTensorHeaderBytes);
  std::fill(block.begin(), block.end(), std::byte{0});
  const std::string name = CutName(header.name);
  const auto put = [&block](Word word, auto value) {
    PutWord(block, word * 8, static_cast<uint64_t>(value));
  };
  put(kMagicWord, kMagic);
  put(kFormatWord, kFormat);
  put(kPathId, header.path_id);
  put(kOwnOffset, header.own_offset);
  put(kTensorId, header.tensor_id);
  put(kGeneration, header.generation);
  put(kStep, header.step);
  put(kPayloadBytes, header.payload_bytes);
  put(kPayloadHash, header.payload_hash);
  put(kGlobalOffset, header.global_offset);
  put(kNameBytes, name.size());
  std::memcpy(block.data() + kNameAt, name.data(), name.size());
  PutWord(block, kHashAt, Checksum(block.data(), kHashAt));
}

absl::Status DecodeExtentHeader(absl::Span<const std::byte> block,
                                ExtentHeader* header) {
  TERRACE_CHECK(block.size() == kTensorHeaderBytes);
  const auto get = [&block](Word word) { return GetWord(block, word * 8); };
  const auto get_signed = [&get](Word word) {
    return static_cast<int64_t>(get(word));
  };
  if (get(kMagicWord) != kMagic) {
    return Wrong("magic", get(kMagicWord), kMagic);
  }
  if (get(kFormatWord) != kFormat) {
    return Wrong("format", get(kFormatWord), kFormat);
  }
  const uint64_t hash = Checksum(block.data(), kHashAt);
  if (GetWord(block, kHashAt) != hash) {
    return Wrong("checksum", GetWord(block, kHashAt), hash);
  }
  const uint64_t name_bytes = get(kNameBytes);
  if (name_bytes > kMaxNameBytes) {
    return Wrong("name length", name_bytes, kMaxNameBytes);
  }
  header->path_id = get(kPathId);
  header->own_offset = get_signed(kOwnOffset);
  header->tensor_id = get_signed(kTensorId);
  header->generation = get(kGeneration);
  header->step = get_signed(kStep);
  header->payload_bytes = get_signed(kPayloadBytes);
  header->payload_hash = get(kPayloadHash);
  header->global_offset = get_signed(kGlobalOffset);
  header->name.assign(reinterpret_cast<const char*>(block.data()) + kNameAt,
                      name_bytes);
  return absl::OkStatus();
}

absl::Status MatchExtentHeader(const ExtentHeader& found,
                               const ExtentHeader& expected) {
  if (found.path_id != expected.path_id) {
    return Wrong("path id", found.path_id, expected.path_id);
  }
  if (found.own_offset != expected.own_offset) {
    return Differs("own offset", found.own_offset, expected.own_offset);
  }
  if (found.tensor_id != expected.tensor_id) {
    return Differs("tensor id", found.tensor_id, expected.tensor_id);
  }
  if (found.generation != expected.generation) {
    return Differs("generation", found.generation, expected.generation);
  }
  if (found.payload_bytes != expected.payload_bytes) {
    return Differs("payload bytes", found.payload_bytes,
                   expected.payload_bytes);
  }
  if (found.payload_hash != expected.payload_hash) {
    return Wrong("payload hash", found.payload_hash, expected.payload_hash);
  }
  if (found.global_offset != expected.global_offset) {
    return Differs("global offset", found.global_offset,
                   expected.global_offset);
  }
  if (found.name != CutName(expected.name)) {
    return Differs("name", found.name, CutName(expected.name));
  }
  return absl::OkStatus();
}

}  // namespace terrace
