#include "bench/io_workbench.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aio/io_error.h"
#include "runtime/base/status_macros.h"

namespace terrace::bench {

absl::Status Workbench::Open(const std::string& directory) {
  std::string name = absl::StrCat(directory, "/terrace-bench-io-XXXXXX");
  const int made = mkstemp(name.data());
  if (made < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot make a file in ", directory, ": ", DescribeErrno(errno)));
  }
  fd_ = open(name.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT);
  is_direct_ = fd_ >= 0;
  if (is_direct_) {
    close(made);
  } else {
    fd_ = made;
  }
  unlink(name.c_str());  // gone with the process, however it ends
  return absl::OkStatus();
}

absl::Status Workbench::Setup(const std::string& directory,
                              int64_t size_bytes) {
  if (size_bytes < 2 * kTransfer || size_bytes % (2 * kTransfer) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--size is not a multiple of ", 2 * kTransfer));
  }
  size_bytes_ = size_bytes;
  TERRACE_RETURN_IF_ERROR(Open(directory));
  const int error = posix_fallocate(fd_, 0, size_bytes);
  if (error != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for ", size_bytes, " bytes in ", directory, ": ",
                     DescribeErrno(error)));
  }
  void* const mapping =
      mmap(nullptr, kArena + kDemandArena, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return absl::ResourceExhaustedError("no memory");
  madvise(mapping, kArena + kDemandArena, MADV_HUGEPAGE);
  arena_ = static_cast<std::byte*>(mapping);
  std::mt19937_64 random(1);
  for (int64_t at = 0; at < kArena + kDemandArena; at += 8) {
    *reinterpret_cast<uint64_t*>(arena_ + at) = random();
  }
  for (int64_t at = 0; at < size_bytes; at += kTransfer) {
    if (pwrite(fd_, bulk(at), kTransfer, at) != kTransfer) {
      return absl::UnavailableError(
          absl::StrCat("first pass: ", DescribeErrno(errno)));
    }
  }
  return absl::OkStatus();
}

absl::Status RunRawThreads(const Workbench& bench, const Load& load,
                           int64_t piece, int depth) {
  std::vector<IoRequest> requests;
  LoadCursor cursor(load, bench, piece);
  for (IoRequest request; cursor.Next(&request);) requests.push_back(request);
  std::atomic<size_t> next = 0;
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < depth; ++i) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < requests.size(); at = next++) {
        const IoRequest& request = requests[at];
        const auto size = static_cast<size_t>(request.size_bytes);
        const ssize_t moved =
            request.direction == IoDirection::kRead
                ? pread(bench.fd(), request.data, size, request.offset)
                : pwrite(bench.fd(), request.data, size, request.offset);
        if (moved != request.size_bytes) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failures > 0) return absl::UnavailableError("a raw call failed");
  return absl::OkStatus();
}

}  // namespace terrace::bench
