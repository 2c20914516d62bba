// What tests of persistent memory have in common. On machines without any they
// run on ordinary files, by the same calls, with unsafe media allowed.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/tiers/other_job.h"
#include "tiers/pmem/pmem_medium.h"

namespace terrace {

// Skips where the build has no libpmem2.
class PmemTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::Status available = PersistDomain::CheckAvailable();
    if (absl::IsUnimplemented(available)) GTEST_SKIP() << available;
  }
};

inline absl::StatusOr<std::unique_ptr<PmemMedium>> OpenUnsafe(
    const std::string& place, int64_t budget_bytes) {
  return PmemMedium::Open(
      {.place = place, .budget_bytes = budget_bytes, .unsafe_media = true});
}

// Of the file at the path, past any mapping.
inline std::vector<std::byte> RawBytes(const std::string& file, int64_t offset,
                                       int64_t size_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(size_bytes));
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_GE(fd, 0) << file;
  EXPECT_EQ(pread(fd, bytes.data(), bytes.size(), offset), size_bytes);
  close(fd);
  return bytes;
}

inline std::vector<std::byte> Filled(int64_t size_bytes, uint32_t seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(size_bytes));
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>((i * 31 + i / 251 + seed) & 0xff);
  }
  return bytes;
}

// Another process that has a medium at the place, written to, until it is
// killed.
class OtherPmemJob : public OtherJob {
 public:
  OtherPmemJob(const std::string& place, int64_t budget_bytes)
      : OtherJob([&](HasIt has_it) {
          const auto medium = OpenUnsafe(place, budget_bytes);
          has_it(medium.ok() &&
                 (*medium)->Write(0, Filled((*medium)->size_bytes(), 1)).ok());
        }) {}
};

}  // namespace terrace
