// A simulated world by a seed: its budget, its tiers and how they are used.
#pragma once

#include <cstdint>

#include "tests/sim/world.h"

namespace terrace {

// What goes wrong at random moments.
enum class Trouble : uint8_t {
  kNone,
  kAny,
  // One path of several, or a mapped tier, refuses all writes for a while; no
  // customer may notice.
  kRefusal,
};

// What lies below memory.
enum class Tiers : uint8_t {
  kDisks,
  // Far and persistent memory above disks, with budgets and speeds of their
  // own, copied by one to four threads.
  kDrawn,
  // As that, and a device's memory above it all.
  kDevice,
  // As that, with two or three memories and two devices.
  kSeveral,
};

WorldOptions DrawWorld(uint64_t seed, Trouble trouble, Transcript* transcript,
                       Tiers tiers);

}  // namespace terrace
