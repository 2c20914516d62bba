// Copies between DRAM and another tier, a transport's beside a raw loop's: what
// `terrace-bench tiers` and `terrace-bench device` have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "bench/gate.h"
#include "bench/io/io_load.h"
#include "bench/report/document.h"
#include "bench/rounds.h"
#include "tiers/transport.h"

namespace terrace::bench {

inline constexpr int64_t kMoveBytes = 8 * kMiB;
// The end that is not DRAM, whatever it is.
inline constexpr TierId kCopiedTier = {TierKind::kDisk, 0};

// Lets one thread wait for what ends on others.
class Signal {
 public:
  void Set();
  void Await();
  // Returns without it after `at_most`, or earlier.
  void AwaitFor(absl::Duration at_most);
  // For what may have ended without it, as a transport to a device now and
  // then has.
  void Look() { AwaitFor(absl::Milliseconds(100)); }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
};

// Of what lies at an offset: up, down, or every other move of both.
enum class Way : uint8_t { kUp, kDown, kBoth };
bool IsUp(Way way, int64_t offset);
const char* NameOf(Way way);

// Moves of all of `dram`, to or from the same offsets of kCopiedTier; `wait`
// blocks until one may have ended. The first error of a move.
absl::StatusOr<Sample> RunMoves(Transport& transport,
                                const std::function<void()>& wait, Way way,
                                absl::Span<std::byte> dram);

// Of a transport beside the least, where the medium is memory.
inline constexpr Bar kCopyBar = {0.95, true};

// Rounds of both: a row for each, and their ratio with its bar, if it has one.
absl::Status AddBeside(const std::string& name,
                       std::function<absl::StatusOr<Sample>()> transport,
                       const std::string& bound,
                       std::function<absl::StatusOr<Sample>()> loop,
                       std::optional<Bar> bar, int64_t rounds, Gate& gate,
                       Section* section);

}  // namespace terrace::bench
