// What tests of given files and devices look at.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/support/byte_units.h"
#include "tiers/disk/disk_file.h"
#include "tiers/disk/given_file.h"
#include "tiers/memory/page_buffer.h"

namespace terrace {

inline constexpr int64_t kMark = GivenFile::kMarkBytes;

inline std::string Contents(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline std::string BytesAt(int fd, int64_t offset, int64_t size_bytes) {
  std::string bytes(static_cast<size_t>(size_bytes), '?');
  EXPECT_EQ(pread(fd, bytes.data(), bytes.size(), offset), size_bytes);
  return bytes;
}

// Fills an extent through the tier's descriptor.
inline void WriteAll(const DiskFile& tier, Extent extent, char value) {
  PageBuffer buffer(extent.size_bytes);
  std::fill_n(buffer.data(), extent.size_bytes, value);
  ASSERT_EQ(pwrite(tier.fd(), buffer.data(),
                   static_cast<size_t>(extent.size_bytes), extent.offset),
            extent.size_bytes);
}

inline absl::Status OpenFails(const std::string& path) {
  return OpenDiskFile({.path = path}).status();
}

}  // namespace terrace
