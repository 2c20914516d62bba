// An engine that completes exactly what the test says, when it says so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "aio/engine.h"
#include "base/check.h"

namespace terrace {

class ScriptedEngine final : public IoEngine {
 public:
  absl::StatusOr<int> AddFile(int /*fd*/) override { return files_++; }
  void RegisterArena(absl::Span<std::byte> /*arena*/) override {}

  int Submit(absl::Span<const IoRequest> requests) override {
    const int taken =
        static_cast<int>(std::min(requests.size(), static_cast<size_t>(room_)));
    for (const IoRequest& request : requests.first(taken)) {
      in_flight_.push_back(request);
      submitted_.push_back(request);
    }
    room_ -= taken;
    return taken;
  }
  int Slots(int /*file*/) const override { return slots_; }
  bool Withdraw(uint64_t tag) override {
    for (size_t i = begun_; i < in_flight_.size(); ++i) {
      if (in_flight_[i].tag != tag) continue;
      in_flight_.erase(in_flight_.begin() + static_cast<ptrdiff_t>(i));
      return true;
    }
    return false;
  }
  int Poll(absl::Span<IoResult> results) override {
    int n = 0;
    for (; n < static_cast<int>(results.size()) && !done_.empty(); ++n) {
      results[n] = done_.front();
      done_.pop_front();
    }
    return n;
  }
  void Wait(absl::Time /*deadline*/) override {}
  void Wake() override {}
  EngineInfo info() const override { return {"scripted", "test"}; }

  // Ends the i-th of those in flight; kWhole: every byte.
  static constexpr int64_t kWhole = INT64_MAX;
  void Complete(size_t i, int64_t result = kWhole) {
    TERRACE_CHECK(i < in_flight_.size());
    const IoRequest request = in_flight_[i];
    in_flight_.erase(in_flight_.begin() + static_cast<ptrdiff_t>(i));
    done_.push_back(
        {request.tag, result == kWhole ? request.size_bytes : result});
  }
  void CompleteAll() {
    while (!in_flight_.empty()) Complete(0);
  }
  void set_room(int requests) { room_ = requests; }
  // Of each file that is added from here on.
  void set_slots(int slots) { slots_ = slots; }
  // So many of those in flight, the first ones.
  void set_begun(size_t requests) { begun_ = requests; }

  const std::vector<IoRequest>& in_flight() const { return in_flight_; }
  const std::vector<IoRequest>& submitted() const { return submitted_; }

 private:
  int files_ = 0;
  int room_ = 1 << 30;
  int slots_ = kMostSlots;
  size_t begun_ = size_t{1} << 30;
  std::vector<IoRequest> in_flight_;
  std::vector<IoRequest> submitted_;  // ever
  std::deque<IoResult> done_;
};

}  // namespace terrace
