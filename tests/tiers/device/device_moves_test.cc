// The Device transport on every device: random moves against a plain map.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/tiers/device/device_contract.h"
#include "tiers/device/device_transport.h"

namespace terrace {
namespace {

constexpr TierId kTier = 2;
constexpr int kPlaces = 8;
constexpr int64_t kPlaceBytes = 3 << 19;

// Places of a tier, each with DRAM of its own; a place has one move at a time.
class RandomMoves {
 public:
  RandomMoves(DeviceWorld& world, std::shared_ptr<DeviceSpace> space,
              uint32_t seed)
      : world_(world),
        random_(seed),
        transport_(kTier, std::move(space), world.clock(), [] {},
                   {.piece_bytes = 256 << 10, .most_pieces = 3}) {}

  void Run(int moves) {
    for (int begun = 0; begun < moves || !under_way_.empty();) {
      const int place = Draw(kPlaces);
      if (begun < moves && !under_way_.contains(place)) {
        BeginAt(place);
        ++begun;
      } else if (Draw(4) == 0) {
        Disturb(place);
      } else {
        const size_t before = under_way_.size();
        ASSERT_TRUE(world_.Await([&] {
          Poll();
          return under_way_.size() < before || before == 0;
        })) << "a move has not ended";
      }
      if (testing::Test::HasFailure()) return Drain();
    }
    EXPECT_EQ(transport_.pending(), 0);
    EXPECT_GT(whole_, moves / 2);
    const IoPathStats stats = transport_.stats();
    EXPECT_EQ(stats.in_flight_bytes, 0);
    EXPECT_GE(stats.bytes_read, read_bytes_);
    EXPECT_GE(stats.bytes_written, written_bytes_);
  }

 private:
  struct UnderWay {
    bool up = false;
    int value = 0;
  };

  int Draw(int below) { return static_cast<int>(random_() % below); }
  std::byte* DramAt(int place) { return dram_.data() + place * kPlaceBytes; }
  Edge EdgeOf(int place) const {
    return under_way_.at(place).up ? Edge{kTier, kDramTier}
                                   : Edge{kDramTier, kTier};
  }

  void BeginAt(int place) {
    const bool up = values_.contains(place) && Draw(2) == 0;
    const int64_t size =
        up ? sizes_[place] : 1 + Draw(static_cast<int>(kPlaceBytes));
    under_way_[place] = {up, next_value_++};
    if (!up) {
      values_.erase(place);
      sizes_[place] = size;
    }
    // An up move must change it.
    const int value = up ? 0 : under_way_[place].value;
    std::memset(DramAt(place), value, static_cast<size_t>(size));
    Move move;
    move.tag = static_cast<uint64_t>(place);
    move.edge = EdgeOf(place);
    move.from = move.to = {place * kPlaceBytes, size};
    move.data = DramAt(place);
    move.io_class = static_cast<IoClass>(Draw(kIoClasses));
    transport_.Begin(move);
  }
  void Disturb(int place) {
    if (!under_way_.contains(place)) return;
    const auto tag = static_cast<uint64_t>(place);
    if (Draw(2) == 0) {
      transport_.Promote(EdgeOf(place), tag, IoClass::kDemand);
    } else {
      transport_.Cancel(EdgeOf(place), tag);
    }
  }
  void Poll() {
    std::vector<Moved> moved;
    transport_.Poll(&moved);
    for (const Moved& each : moved) {
      const int place = static_cast<int>(each.tag);
      ASSERT_TRUE(under_way_.contains(place)) << "ended twice";
      EXPECT_FALSE(each.late || each.released);
      const UnderWay was = under_way_.at(place);
      under_way_.erase(place);
      if (!each.status.ok()) {
        EXPECT_TRUE(absl::IsCancelled(each.status)) << each.status;
        continue;
      }
      ++whole_;
      if (was.up) {
        read_bytes_ += sizes_[place];
        ExpectValue(place);
      } else {
        written_bytes_ += sizes_[place];
        values_[place] = was.value;
        std::memset(DramAt(place), 0, static_cast<size_t>(sizes_[place]));
      }
    }
  }
  void ExpectValue(int place) {
    const std::byte* const bytes = DramAt(place);
    const auto size = static_cast<size_t>(sizes_[place]);
    const std::byte value{static_cast<unsigned char>(values_.at(place))};
    EXPECT_TRUE(bytes[0] == value &&
                std::memcmp(bytes, bytes + 1, size - 1) == 0)
        << "place " << place;
  }
  // Memory is in use until all have ended.
  void Drain() {
    world_.Await([&] {
      std::vector<Moved> moved;
      transport_.Poll(&moved);
      return transport_.pending() == 0;
    });
  }

  DeviceWorld& world_;
  std::minstd_rand random_;
  std::vector<std::byte> dram_ = std::vector<std::byte>(kPlaces * kPlaceBytes);
  std::map<int, int> values_;  // by place
  std::map<int, int64_t> sizes_;
  std::map<int, UnderWay> under_way_;
  int next_value_ = 1;
  int whole_ = 0;
  int64_t read_bytes_ = 0;
  int64_t written_bytes_ = 0;
  DeviceTransport transport_;
};

class DeviceMovesTest : public DeviceContractTest {};

TEST_P(DeviceMovesTest, RandomMovesAgreeWithAMap) {
  auto space = DeviceSpace::Create(device_, kPlaces * kPlaceBytes);
  ASSERT_TRUE(space.ok()) << space.status();
  for (const uint32_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    RandomMoves(*world_, *space, seed).Run(200);
  }
}

TEST_P(DeviceMovesTest, EveryEndWakes) {
  auto space = DeviceSpace::Create(device_, 1 << 20);
  ASSERT_TRUE(space.ok()) << space.status();
  std::vector<std::byte> dram(1 << 20);
  std::atomic<int> wakes = 0;
  DeviceTransport transport(kTier, *space, world_->clock(),
                            [&wakes] { ++wakes; });
  for (const Edge edge : {Edge{kDramTier, kTier}, Edge{kTier, kDramTier}}) {
    const int before = wakes;
    Move move;
    move.tag = 1;
    move.edge = edge;
    move.from = move.to = {0, 1 << 20};
    move.data = dram.data();
    transport.Begin(move);
    ASSERT_TRUE(world_->Await([&] { return wakes > before; }));
    std::vector<Moved> moved;
    transport.Poll(&moved);  // what woke is there
    ASSERT_EQ(moved.size(), 1u);
    EXPECT_TRUE(moved[0].status.ok()) << moved[0].status;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceMovesTest, AllDeviceWorlds(),
                         DeviceWorldName);

}  // namespace
}  // namespace terrace
