// A device that is slow and well: what queues behind our own transfers for
// longer than the I/O timeout is late, and no error.
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/sim/world.h"

namespace terrace {
namespace {

constexpr int kSlowTensors = 8;
constexpr int64_t kSlowTensorBytes = 64 << 10;
constexpr int64_t kSlowRate = 1 << 20;

WorldOptions SlowWorld(const IoQueueOptions& io) {
  WorldOptions options;
  options.budget_bytes = WindowBytes(kSlowTensorBytes, kSlowTensors);
  options.paths = 1;
  options.pace = {kSlowRate, kSlowRate};
  options.prefetch = false;
  options.io_timeout = absl::Milliseconds(200);
  options.io = io;
  return options;
}

// All of them in one group, released at once; twice, so that they are also
// read at once.
void WriteAndReadAtOnce(const IoQueueOptions& io) {
  World world(SlowWorld(io));
  std::vector<Want> half[2];
  for (int i = 0; i < 2 * kSlowTensors; ++i) {
    const auto id = world.runtime().Register(
        {.name = absl::StrCat("t", i), .size_bytes = kSlowTensorBytes});
    ASSERT_TRUE(id.ok()) << id.status();
    half[i / kSlowTensors].push_back({*id, Access::kOverwrite});
  }
  auto queue = world.runtime().OpenQueue(kSlowTensorBytes, kSlowTensors,
                                         absl::InfiniteFuture());
  ASSERT_TRUE(queue.ok()) << queue.status();
  const absl::Time start = world.clock().Now();
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE((*queue)->BeginStep(step).ok());
    std::vector<Want>& wants = half[step % 2];
    ASSERT_TRUE((*queue)->Push(wants, 0, absl::InfiniteFuture()).ok());
    auto ready = (*queue)->Next(absl::InfiniteFuture());
    ASSERT_TRUE(ready.ok()) << ready.status();
    ASSERT_TRUE(ready->pins.ok()) << ready->pins.status();
    ready->pins->clear();
    world.clock().RunUntil([] { return false; },
                           world.clock().Now() + absl::Seconds(2));
    const absl::Status committed = (*queue)->CommitStep({step});
    EXPECT_TRUE(committed.ok()) << "step " << step << ": " << committed;
    for (Want& want : wants) want.access = Access::kUpdate;
  }
  // It was as slow as it had to be to mean something.
  const Stats stats = world.runtime().GetStats();
  EXPECT_FALSE(stats.paths()[0].degraded);
  EXPECT_TRUE(stats.first_error.ok()) << stats.first_error;
  EXPECT_GE(stats.bytes_written(), 2 * kSlowTensors * kSlowTensorBytes);
  EXPECT_GE(stats.bytes_read(), kSlowTensors * kSlowTensorBytes);
  EXPECT_GE(world.clock().Now() - start, absl::Seconds(2));
}

TEST(SlowDeviceTest, AFullWindowInFlightIsNotLate) { WriteAndReadAtOnce({}); }

TEST(SlowDeviceTest, WhatWaitsForTheWindowIsNotLate) {
  IoQueueOptions io;
  io.in_flight_bytes = 128 << 10;
  WriteAndReadAtOnce(io);
}

}  // namespace
}  // namespace terrace
