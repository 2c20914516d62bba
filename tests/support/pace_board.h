// What each of several paced devices may move, which may change while they
// run: for simulations and benchmarks of devices that grow slow.
//
//   auto board = std::make_shared<PaceBoard>(PaceOptions{kFast, kFast});
//   auto engine = MakePacedEngine(std::move(memory), board, clock);
//   board->Set(1, {kSlow, kSlow});
//
// Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "aio/engine.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "terrace/options.h"

namespace terrace {

class PaceBoard {
 public:
  // Of every file that has none of its own.
  explicit PaceBoard(const PaceOptions& others) : others_(others) {}

  // Of requests that come from here on; `file` is the engine's.
  void Set(int file, const PaceOptions& pace) {
    MutexLock lock(mutex_);
    paces_[file] = pace;
  }
  PaceOptions of(int file) const {
    MutexLock lock(mutex_);
    const auto found = paces_.find(file);
    return found == paces_.end() ? others_ : found->second;
  }

 private:
  const PaceOptions others_;
  mutable Mutex mutex_;
  std::map<int, PaceOptions> paces_ ABSL_GUARDED_BY(mutex_);
};

// At the board's rates. The engine and the test that changes them share it.
inline std::unique_ptr<IoEngine> MakePacedEngine(
    std::unique_ptr<IoEngine> engine, std::shared_ptr<const PaceBoard> board,
    Clock& clock) {
  return MakePacedEngine(
      std::move(engine),
      [board = std::move(board)](int file) { return board->of(file); }, clock);
}

}  // namespace terrace
