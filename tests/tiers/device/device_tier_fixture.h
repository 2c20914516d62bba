// A Device transport in virtual time: 1 MiB takes 100 microseconds in either
// direction, whatever it is a piece of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/support/medium/tier_ids.h"
#include "tests/tiers/device/device_worlds.h"
#include "tiers/device/device_transport.h"

namespace terrace {

inline constexpr int64_t kMiB = 1 << 20;
inline constexpr TierId kHbm = {TierKind::kHbm, 2};
inline constexpr Edge kUp = {kHbm, kDramTier};
inline constexpr Edge kDown = {kDramTier, kHbm};
inline constexpr absl::Duration kMiBTime = absl::Microseconds(100);

class DeviceTransportTest : public testing::Test {
 protected:
  static constexpr int64_t kBytes = 64 * kMiB;
  static VirtualDeviceOptions Timed() {
    VirtualDeviceOptions options;
    options.capacity_bytes = kBytes;
    options.to_device_rate = options.to_host_rate =
        static_cast<double>(kMiB) / absl::ToDoubleSeconds(kMiBTime);
    options.copy_time = absl::ZeroDuration();
    return options;
  }

  explicit DeviceTransportTest(VirtualDeviceOptions options = Timed())
      : world_(std::move(options)) {
    auto space = DeviceSpace::Create(world_.device(), kBytes);
    EXPECT_TRUE(space.ok()) << space.status();
    space_ = *std::move(space);
    Make({.piece_bytes = kMiB, .most_pieces = 3});
  }
  ~DeviceTransportTest() override {
    EXPECT_TRUE(fake().bytes().violations().empty())
        << fake().bytes().violations().front();
    if (step_ >= 0) clock().RemoveStep(step_);
  }

  void Make(const DeviceQueueOptions& options) {
    transport_ = std::make_unique<DeviceTransport>(
        kHbm, space_, world_.clock(), [this] { ++wakes_; }, options);
  }
  // As the mover: polls whenever it wakes, or is due.
  void PollByItself() {
    step_ = clock().AddStep([this] {
      if (wakes_ == seen_ && transport_->NextEvent() > clock().Now()) {
        return transport_->NextEvent();
      }
      seen_ = wakes_;
      Poll();
      return clock().Now();
    });
  }

  VirtualDevice& fake() { return world_.fake(); }
  DeviceScript& script() { return world_.fake().script(); }
  VirtualClock& clock() { return static_cast<VirtualClock&>(world_.clock()); }
  void Pass(absl::Duration time) {
    const absl::Time end = clock().Now() + time;
    while (clock().Now() < end) clock().Advance(end);
    clock().Pump();
  }

  Move MoveOf(uint64_t tag, Edge edge, int64_t offset, int64_t size_bytes,
              IoClass io_class = IoClass::kDemand) {
    Move move;
    move.tag = tag;
    move.edge = edge;
    move.from = move.to = {offset, size_bytes};
    move.data = dram_.data() + offset;
    move.io_class = io_class;
    return move;
  }
  void Begin(uint64_t tag, Edge edge, int64_t offset, int64_t size_bytes,
             IoClass io_class = IoClass::kDemand) {
    transport_->Begin(MoveOf(tag, edge, offset, size_bytes, io_class));
  }
  // Also kept, by tag, in ends_, in order_ and when.
  std::vector<Moved> Poll() {
    std::vector<Moved> moved;
    transport_->Poll(&moved);
    for (const Moved& each : moved) {
      order_ += static_cast<char>('a' + each.tag);
      ends_[each.tag].push_back(each);
      ended_at_[each.tag] = clock().Now();
    }
    return moved;
  }
  // Until nothing is under way.
  void Finish() {
    const bool finished = clock().RunUntil([&] {
      Poll();
      return transport_->pending() == 0;
    });
    EXPECT_TRUE(finished) << "a move has not ended";
  }
  // How a tag's move ended, which it has once, in time.
  absl::Status EndOf(uint64_t tag) {
    if (ends_[tag].size() != 1) return absl::InternalError("not one end");
    const Moved& end = ends_[tag][0];
    EXPECT_FALSE(end.late || end.released);
    return end.status;
  }

  VirtualWorld world_;
  std::shared_ptr<DeviceSpace> space_;
  std::vector<std::byte> dram_ = std::vector<std::byte>(kBytes);
  int wakes_ = 0;
  int seen_ = 0;
  int step_ = -1;
  std::string order_;
  std::map<uint64_t, std::vector<Moved>> ends_;
  std::map<uint64_t, absl::Time> ended_at_;
  std::unique_ptr<DeviceTransport> transport_;
};

}  // namespace terrace
