#include "machine/profile/medium_rate.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aio/engine.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "machine/profile/parallel_time.h"
#include "tiers/memory/host_arena.h"

namespace terrace {
namespace {

constexpr int64_t kMediumPiece = 1 << 20;
constexpr auto kMediumPieceSize = static_cast<size_t>(kMediumPiece);
constexpr size_t kMemoryPieces = 16;  // of each thread
constexpr size_t kTurnPieces = 4;     // of each thread, between two times
constexpr size_t kLeastMediumTurns = 3;

// Where whole pieces lie that touch no bad range.
std::vector<int64_t> GoodPieces(const Medium& medium) {
  const std::vector<Extent> bad = medium.bad_ranges();
  std::vector<int64_t> offsets;
  for (int64_t at = 0; at + kMediumPiece <= medium.size_bytes();
       at += kMediumPiece) {
    const auto touches = [at](const Extent& range) {
      return range.offset < at + kMediumPiece && at < range.end();
    };
    if (std::none_of(bad.begin(), bad.end(), touches)) offsets.push_back(at);
  }
  return offsets;
}

class EdgeProbe {
 public:
  EdgeProbe(Medium& medium, Executor& executor, std::vector<int64_t> offsets,
            absl::Span<std::byte> memory)
      : medium_(medium),
        executor_(executor),
        offsets_(std::move(offsets)),
        memory_(memory),
        threads_(std::min(static_cast<size_t>(executor.parallelism()),
                          offsets_.size())) {}

  // Each piece at least once, so that nothing is allocated later.
  absl::Status WriteOnce() {
    const size_t turn = threads_ * kTurnPieces;
    for (size_t done = 0; done < offsets_.size(); done += turn) {
      TERRACE_RETURN_IF_ERROR(Turn(IoDirection::kWrite).status());
    }
    return absl::OkStatus();
  }

  // The median of bytes a second.
  absl::StatusOr<double> Measure(IoDirection direction, absl::Duration time) {
    const absl::Time end = SystemClock().Now() + time;
    std::vector<double> rates;
    while (rates.size() < kLeastMediumTurns || SystemClock().Now() < end) {
      TERRACE_ASSIGN_OR_RETURN(const double seconds, Turn(direction));
      const auto bytes =
          static_cast<double>(threads_ * kTurnPieces) * double{kMediumPiece};
      if (seconds > 0) rates.push_back(bytes / seconds);
    }
    const auto middle =
        rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2);
    std::nth_element(rates.begin(), middle, rates.end());
    return *middle;
  }

 private:
  // Seconds of all threads together. Each thread has the offsets whose number
  // leaves its own when divided by the threads': no two ever overlap.
  absl::StatusOr<double> Turn(IoDirection direction) {
    std::vector<absl::Status> status(threads_);
    const double seconds = TimeOnAll(executor_, [&](int index) {
      const auto thread = static_cast<size_t>(index);
      if (thread >= threads_) return;
      for (size_t i = 0; i < kTurnPieces && status[thread].ok(); ++i) {
        status[thread] = Move(direction, thread, moved_ + i);
      }
    });
    moved_ += kTurnPieces;
    for (const absl::Status& each : status) TERRACE_RETURN_IF_ERROR(each);
    return seconds;
  }

  absl::Status Move(IoDirection direction, size_t thread, size_t turn) {
    const size_t own = (offsets_.size() - thread - 1) / threads_ + 1;
    const int64_t offset = offsets_[thread + turn % own * threads_];
    const absl::Span<std::byte> memory = memory_.subspan(
        (thread * kMemoryPieces + turn % kMemoryPieces) * kMediumPieceSize,
        kMediumPieceSize);
    return direction == IoDirection::kRead ? medium_.Read(offset, memory)
                                           : medium_.Write(offset, memory);
  }

  Medium& medium_;
  Executor& executor_;
  const std::vector<int64_t> offsets_;
  const absl::Span<std::byte> memory_;
  const size_t threads_;
  size_t moved_ = 0;  // pieces of each thread
};

// Noise: some media store zeros without writing them.
void Fill(absl::Span<std::byte> memory) {
  std::mt19937_64 random(memory.size());
  for (size_t i = 0; i + sizeof(uint64_t) <= memory.size();
       i += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(memory.data() + i, &word, sizeof(word));
  }
}

}  // namespace

absl::StatusOr<MediumRates> MeasureMedium(Medium& medium, Executor& executor,
                                          absl::Duration time) {
  if (time <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("no time to measure a rate");
  }
  std::vector<int64_t> offsets = GoodPieces(medium);
  if (offsets.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(medium.name(), ": ", medium.size_bytes(),
                     " bytes are too few to measure it, or bad blocks are in "
                     "each piece of ",
                     kMediumPiece));
  }
  const auto bytes = static_cast<int64_t>(kMemoryPieces) * kMediumPiece *
                     executor.parallelism();
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<HostArena> arena,
                           HostArena::Create({.size_bytes = bytes}));
  Fill(arena->bytes());
  EdgeProbe probe(medium, executor, std::move(offsets), arena->bytes());
  TERRACE_RETURN_IF_ERROR(probe.WriteOnce());
  MediumRates rates;
  TERRACE_ASSIGN_OR_RETURN(rates.write_bytes_per_second,
                           probe.Measure(IoDirection::kWrite, time));
  TERRACE_ASSIGN_OR_RETURN(rates.read_bytes_per_second,
                           probe.Measure(IoDirection::kRead, time));
  return rates;
}

}  // namespace terrace
