// The loops of a pool's threads, so that somebody may ask whether they turn: a
// heartbeat each, and the word that they sleep at.
//
// Shared by the pool and who asks. Thread-safe.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/threads/heartbeat.h"
#include "base/threads/wake_word.h"

namespace terrace {

struct PoolLoops {
  // Of the first threads; the others have none.
  const std::vector<std::shared_ptr<Heartbeat>> heartbeats;
  WakeWord wake;

  PoolLoops() = default;
  explicit PoolLoops(std::vector<std::shared_ptr<Heartbeat>> of_threads)
      : heartbeats(std::move(of_threads)) {}
  Heartbeat* HeartbeatOf(size_t thread) const {
    return thread < heartbeats.size() ? heartbeats[thread].get() : nullptr;
  }
};

}  // namespace terrace
