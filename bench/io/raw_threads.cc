#include "bench/io/raw_threads.h"

#include <unistd.h>

#include <atomic>
#include <thread>

namespace terrace::bench {

absl::Status RunRawThreads(const std::vector<int>& fds, const Load& load,
                           absl::Span<std::byte> memory, int64_t piece_bytes,
                           int threads) {
  std::vector<IoRequest> requests;
  LoadCursor cursor(load, memory, piece_bytes);
  for (IoRequest request; cursor.Next(&request);) requests.push_back(request);
  std::atomic<size_t> next = 0;
  std::atomic<int> failures = 0;
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      for (size_t at = next++; at < requests.size(); at = next++) {
        const IoRequest& request = requests[at];
        const int fd = fds[request.file];
        const auto size = static_cast<size_t>(request.size_bytes);
        const ssize_t moved =
            request.direction == IoDirection::kRead
                ? pread(fd, request.data, size, request.offset)
                : pwrite(fd, request.data, size, request.offset);
        if (moved != request.size_bytes) ++failures;
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  if (failures > 0) return absl::UnavailableError("a raw call failed");
  return absl::OkStatus();
}

}  // namespace terrace::bench
