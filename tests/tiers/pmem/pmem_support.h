// What tests of persistent memory have in common. On machines without any they
// run on ordinary files, by the same calls, with unsafe media allowed.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
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
class OtherPmemJob {
 public:
  OtherPmemJob(const std::string& place, int64_t budget_bytes) {
    int ready[2];
    EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const auto medium = OpenUnsafe(place, budget_bytes);
      const bool ok =
          medium.ok() &&
          (*medium)->Write(0, Filled((*medium)->size_bytes(), 1)).ok();
      const char verdict = ok ? 'y' : 'n';
      if (write(ready[1], &verdict, 1) != 1) _exit(1);
      while (true) pause();
    }
    close(ready[1]);
    char verdict = 0;
    EXPECT_EQ(read(ready[0], &verdict, 1), 1);
    EXPECT_EQ(verdict, 'y');
    close(ready[0]);
  }
  ~OtherPmemJob() { Kill(); }
  OtherPmemJob(const OtherPmemJob&) = delete;
  OtherPmemJob& operator=(const OtherPmemJob&) = delete;

  void Kill() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  pid_t child_ = -1;
};

}  // namespace terrace
