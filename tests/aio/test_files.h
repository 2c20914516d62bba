// What the tests of aio/ share: aligned buffers, files that go away, and the
// engines by name.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "aio/engine.h"
#include "aio/make_engine.h"
#include "base/check.h"
#include "base/clock.h"
#include "gtest/gtest.h"

namespace terrace {

// Aligned to 4096, as direct I/O asks for.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(int64_t size_bytes)
      : size_bytes_(size_bytes),
        data_(static_cast<std::byte*>(
            std::aligned_alloc(4096, static_cast<size_t>(size_bytes)))) {
    TERRACE_CHECK(data_ != nullptr);
    Fill(0);
  }
  ~AlignedBuffer() { std::free(data_); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  void Fill(int value) {
    std::fill(data_, data_ + size_bytes_, static_cast<std::byte>(value));
  }
  void FillRandom(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int64_t i = 0; i < size_bytes_; i += 8) {
      const uint64_t word = random();
      std::memcpy(data_ + i, &word, 8);
    }
  }
  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  std::vector<std::byte> Copy(int64_t offset, int64_t size) const {
    return {data_ + offset, data_ + offset + size};
  }

 private:
  const int64_t size_bytes_;
  std::byte* const data_;
};

// A file of the test's temporary directory, gone with this object.
class TemporaryFile {
 public:
  // Direct where the file system allows it.
  explicit TemporaryFile(int64_t size_bytes, bool direct = true) {
    std::string pattern = testing::TempDir() + "/terrace_aio_XXXXXX";
    const int made = mkstemp(pattern.data());
    TERRACE_CHECK(made >= 0);
    TERRACE_CHECK(ftruncate(made, size_bytes) == 0);
    name_ = pattern;
    if (direct) fd_ = open(name_.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT);
    if (fd_ < 0) {
      fd_ = made;
    } else {
      close(made);
    }
  }
  ~TemporaryFile() {
    close(fd_);
    unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  int fd() const { return fd_; }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  int fd_ = -1;
};

// What the ring is set up with at first, so what a step down takes away.
inline constexpr uint32_t kDeferTaskrun = 1U << 13;  // linux/io_uring.h
inline constexpr uint32_t kCoopTaskrun = 1U << 8;

// The ring by the name of its step: as the kernel gives it, one step down, two.
inline absl::StatusOr<std::unique_ptr<IoEngine>> MakeRingOfKind(
    const std::string& kind) {
  if (kind == "io_uring_coop") return MakeUringEngine(kDeferTaskrun);
  if (kind == "io_uring_bare") {
    return MakeUringEngine(kDeferTaskrun | kCoopTaskrun);
  }
  return MakeUringEngine();
}

// An engine and `files` things that it can open, alike for every kind.
struct EngineUnderTest {
  std::vector<std::unique_ptr<TemporaryFile>> files;
  std::vector<int> descriptors;  // for AddFile
  std::unique_ptr<IoEngine> engine;
  std::string reason_to_skip;
};

inline EngineUnderTest MakeEngineUnderTest(const std::string& kind, int files,
                                           int64_t bytes, Clock& clock) {
  EngineUnderTest made;
  const PaceOptions pace{200 << 20, 200 << 20};
  for (int i = 0; i < files; ++i) made.descriptors.push_back(i);
  if (kind == "memory" || kind == "paced_memory") {
    made.engine = MakeMemoryEngine(files, bytes, clock);
    if (kind == "paced_memory") {
      made.engine = MakePacedEngine(std::move(made.engine), pace, clock);
    }
    return made;
  }
  for (int i = 0; i < files; ++i) {
    made.files.push_back(std::make_unique<TemporaryFile>(bytes));
    made.descriptors[i] = made.files.back()->fd();
  }
  absl::StatusOr<std::unique_ptr<IoEngine>> engine =
      kind == "threads" ? MakeEngine(EngineKind::kThreads)
                        : MakeRingOfKind(kind);
  if (!engine.ok()) {
    made.reason_to_skip = std::string(engine.status().message());
    return made;
  }
  made.engine = *std::move(engine);
  return made;
}

inline const char* const kEngineKinds[] = {"io_uring",      "io_uring_coop",
                                           "io_uring_bare", "threads",
                                           "memory",        "paced_memory"};

}  // namespace terrace
