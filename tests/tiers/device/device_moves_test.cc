// The Device transport on every device: random moves against a plain map.
#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "tests/support/random_moves.h"
#include "tests/tiers/device/device_contract.h"
#include "tiers/device/device_transport.h"

namespace terrace {
namespace {

constexpr TierId kTier = {TierKind::kHbm, 2};
class DeviceMovesTest : public DeviceContractTest {};

TEST_P(DeviceMovesTest, RandomMovesAgreeWithAMap) {
  auto space = DeviceSpace::Create(
      device_, RandomMoves::kPlaces * RandomMoves::kPlaceBytes);
  ASSERT_TRUE(space.ok()) << space.status();
  for (const uint32_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    DeviceTransport transport(kTier, *space, world_->clock(), [] {},
                              {.piece_bytes = 256 << 10, .most_pieces = 3});
    RandomMoves moves(
        transport, {kTier}, seed,
        [&](absl::FunctionRef<bool()> done) { return world_->Await(done); });
    moves.Run(200);
    const IoPathStats stats = transport.stats();
    EXPECT_EQ(stats.in_flight_bytes, 0);
    EXPECT_GE(stats.bytes_read, moves.read_bytes());
    EXPECT_GE(stats.bytes_written, moves.written_bytes());
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
