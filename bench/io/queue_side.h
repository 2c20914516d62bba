// Our side of `terrace-bench io`: transfers of a chunk through IoPaths, as the
// mover makes them.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aio/io_paths.h"
#include "bench/io/io_load.h"

namespace terrace::bench {

inline constexpr int64_t kTransfer = 8 * kMiB;  // a chunk
inline constexpr int64_t kDemand = kMiB;        // a demand read

// Of one run.
struct Order {
  int ahead = 4;  // bulk transfers enqueued at a time
  // From when on the load ends early: no more of it is begun. 0: it does not.
  double most_seconds = 0;
  // All in one class, so that what came first goes first.
  bool fifo = false;
  // So many random demand reads, one every `demand_period` seconds however
  // the ones before fare, into `demand_memory`, of kDemand bytes.
  int demands = 0;
  double demand_period = 0.005;
  std::byte* demand_memory = nullptr;
  int64_t demand_span = 0;  // bytes of the first file that it reads from
};

class QueueSide {
 public:
  explicit QueueSide(std::unique_ptr<IoEngine> engine);

  void RegisterArena(absl::Span<std::byte> arena);
  // Paths may share a descriptor.
  absl::StatusOr<int> AddPath(int fd, const IoQueueOptions& options);

  // Moves the load; its file i is paths[i]. The bytes that it moved, demand
  // reads not among them.
  absl::StatusOr<int64_t> Run(const Load& load, absl::Span<std::byte> memory,
                              const std::vector<int>& paths,
                              const Order& order);

  // Of all demand reads so far, seconds.
  const std::vector<double>& latencies() const { return latencies_; }
  void ForgetLatencies() { latencies_.clear(); }

  EngineInfo info() const { return io_.engine_info(); }
  IoPathStats stats(int path) const { return io_.stats(path); }

 private:
  void SendDemands(int path, const Order& order);
  absl::StatusOr<int> Reap();

  IoPaths io_;
  std::mt19937_64 random_{7};
  int demands_sent_ = 0;    // of this run
  double next_demand_ = 0;  // when the next one is due, seconds
  // When it was due, of each that is under way; by tag.
  std::unordered_map<uint64_t, double> demand_due_;
  std::vector<double> latencies_;
};

}  // namespace terrace::bench
