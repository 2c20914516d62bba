#include "examples/train_gpt/speed_probe.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"

namespace train_gpt {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kBlockBytes = 2 << 20;
constexpr int kBlocks = 64;         // 128 MiB a file
constexpr int kThreadsPerFile = 4;  // two read, two write
constexpr auto kDiskTime = std::chrono::milliseconds(700);
constexpr size_t kStreamElements = 4 << 20;  // 16 MiB: no cache holds three
constexpr int kPasses = 6;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

struct Free {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using Block = std::unique_ptr<std::byte, Free>;

Block MakeBlock() {
  auto* bytes = static_cast<std::byte*>(std::aligned_alloc(4096, kBlockBytes));
  if (bytes != nullptr) std::memset(bytes, 0x5a, kBlockBytes);
  return Block(bytes);
}

// A probe file, written once over; the caller closes it.
absl::StatusOr<int> MakeFile(const std::string& directory) {
  const absl::StatusOr<int> file = OpenProbeFile(directory);
  if (!file.ok()) return file;
  const Block block = MakeBlock();
  for (int i = 0; block != nullptr && i < kBlocks; ++i) {
    if (pwrite(*file, block.get(), kBlockBytes, i * kBlockBytes) !=
        static_cast<ssize_t>(kBlockBytes)) {
      const int error = errno;
      close(*file);
      return absl::UnavailableError(absl::StrCat("a probe file in ", directory,
                                                 ": ", std::strerror(error)));
    }
  }
  return file;
}

// One thread of the loop: every other thread reads, each its own stripe.
void Transfer(int file, int thread, SteadyClock::time_point end,
              std::array<std::atomic<int64_t>, 2>* moved) {
  const Block block = MakeBlock();
  if (block == nullptr) return;
  for (int i = thread; SteadyClock::now() < end; i += kThreadsPerFile) {
    const auto offset = static_cast<off_t>(i % kBlocks * kBlockBytes);
    const ssize_t n = thread % 2 == 0
                          ? pread(file, block.get(), kBlockBytes, offset)
                          : pwrite(file, block.get(), kBlockBytes, offset);
    if (n <= 0) return;
    (*moved)[thread % 2].fetch_add(n, std::memory_order_relaxed);
  }
}

}  // namespace

double MeasureMemoryBytesPerSecond(int threads) {
  const size_t each = kStreamElements / static_cast<size_t>(threads) + 1;
  std::vector<float> a(each * threads), b(a.size(), 1.f), c(a.size(), 2.f);
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = SteadyClock::now();
    std::vector<std::thread> pool;
    for (int t = 0; t < threads; ++t) {
      pool.emplace_back([&, t] {
        const size_t end = (t + 1) * each;
        for (size_t i = t * each; i < end; ++i) a[i] = b[i] + 3.f * c[i];
      });
    }
    for (std::thread& thread : pool) thread.join();
    const double bytes = 3.0 * sizeof(float) * static_cast<double>(a.size());
    best = std::max(best, bytes / SecondsSince(start));
  }
  return best;
}

absl::StatusOr<double> MeasureDiskBytesPerSecond(
    const std::vector<std::string>& directories,
    const terrace::PaceOptions& pace) {
  if (directories.empty()) return 0;
  std::vector<int> files;
  absl::Status status;
  for (const std::string& directory : directories) {
    const absl::StatusOr<int> file = MakeFile(directory);
    status.Update(file.status());
    if (file.ok()) files.push_back(*file);
  }
  std::array<std::atomic<int64_t>, 2> moved{};  // read, written
  const auto start = SteadyClock::now();
  std::vector<std::thread> pool;
  for (int file : files) {
    for (int t = 0; status.ok() && t < kThreadsPerFile; ++t) {
      pool.emplace_back(Transfer, file, t, start + kDiskTime, &moved);
    }
  }
  for (std::thread& thread : pool) thread.join();
  const double seconds = SecondsSince(start);
  for (int file : files) close(file);
  if (!status.ok()) return status;
  return PacedBytesPerSecond(static_cast<double>(moved[0]) / seconds,
                             static_cast<double>(moved[1]) / seconds, pace,
                             static_cast<int64_t>(directories.size()));
}

double PacedBytesPerSecond(double read, double written,
                           const terrace::PaceOptions& pace, int64_t paths) {
  const auto most = [paths](double rate, int64_t of_a_path) {
    if (of_a_path == 0) return rate;
    return std::min(
        rate, static_cast<double>(paths) * static_cast<double>(of_a_path));
  };
  return most(read, pace.read_bytes_per_second) +
         most(written, pace.write_bytes_per_second);
}

absl::StatusOr<int> OpenProbeFile(const std::string& directory,
                                  int unknown_flags) {
  const auto unknown = [unknown_flags](int flags) {
    // O_TMPFILE is of several bits, and shares one with O_DIRECTORY.
    const bool refused = (flags & O_TMPFILE & ~O_DIRECTORY & unknown_flags) ||
                         (flags & O_DIRECT & unknown_flags);
    if (refused) errno = EOPNOTSUPP;
    return refused;
  };
  const auto nameless = [&](int direct) {
    const int flags = O_TMPFILE | O_RDWR | O_CLOEXEC | direct;
    return unknown(flags) ? -1 : open(directory.c_str(), flags, 0600);
  };
  // Named for as long as it takes to remove the name: network and older
  // overlay file systems know no others.
  // Where direct I/O is refused the file is there before the flag is looked
  // at, so that comes after its name is gone.
  const auto named = [&](int direct) {
    if (unknown(direct)) return -1;
    std::string name = directory + "/.terrace-probe-XXXXXX";
    const int file = mkostemp(name.data(), O_CLOEXEC);
    if (file < 0) return -1;
    unlink(name.c_str());
    if (fcntl(file, F_SETFL, fcntl(file, F_GETFL) | direct) == 0) return file;
    const int error = errno;
    close(file);
    errno = error;
    return -1;
  };
  int file = nameless(O_DIRECT);
  if (file < 0) file = nameless(0);
  if (file < 0) file = named(O_DIRECT);
  if (file < 0) file = named(0);
  if (file >= 0) return file;
  return absl::UnavailableError(
      absl::StrCat("no probe file in ", directory, ": ", std::strerror(errno)));
}

}  // namespace train_gpt
