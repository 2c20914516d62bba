// A device in virtual time: a server for each direction, or one for both, of
// a rate that a test may change, behind a latency. Moves no bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>

#include "aio/engine.h"
#include "base/clock.h"

namespace terrace {

struct DeviceModel {
  double read_rate = 0;  // bytes per second
  double write_rate = 0;
  absl::Duration latency = absl::ZeroDuration();  // of each request, in passing
  bool is_shared = false;                         // one server for both
  absl::Duration jitter = absl::ZeroDuration();   // on top, at most
};

class ModelEngine final : public IoEngine {
 public:
  // Both must outlive the engine.
  ModelEngine(DeviceModel& device, Clock& clock)
      : device_(device), clock_(clock) {}

  absl::StatusOr<int> AddFile(int /*fd*/) override { return 0; }
  void RegisterArena(absl::Span<std::byte> /*arena*/) override {}

  int Submit(absl::Span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      const bool is_read = request.direction == IoDirection::kRead;
      absl::Time& busy = busy_until_[is_read || device_.is_shared ? 0 : 1];
      const double rate = is_read ? device_.read_rate : device_.write_rate;
      busy = std::max(busy, clock_.Now()) +
             absl::Seconds(static_cast<double>(request.size_bytes) / rate);
      const double drawn = std::uniform_real_distribution<>(0, 1)(random_);
      done_.emplace(busy + device_.latency + drawn * device_.jitter,
                    IoResult{request.tag, request.size_bytes});
    }
    return static_cast<int>(requests.size());
  }
  int Poll(absl::Span<IoResult> results) override {
    size_t n = 0;
    for (; n < results.size() && !done_.empty() &&
           done_.begin()->first <= clock_.Now();
         ++n) {
      results[n] = done_.begin()->second;
      done_.erase(done_.begin());
    }
    return static_cast<int>(n);
  }
  void Wait(absl::Time /*deadline*/) override {}
  void Wake() override {}
  absl::Time NextEvent() const override {
    return done_.empty() ? absl::InfiniteFuture() : done_.begin()->first;
  }
  EngineInfo info() const override { return {"model", "in virtual time"}; }

 private:
  const DeviceModel& device_;
  Clock& clock_;
  absl::Time busy_until_[2] = {absl::InfinitePast(), absl::InfinitePast()};
  std::multimap<absl::Time, IoResult> done_;
  std::mt19937_64 random_{41};
};

}  // namespace terrace
