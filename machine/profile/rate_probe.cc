#include "machine/profile/rate_probe.h"

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aio/io_error.h"
#include "base/check.h"

namespace terrace {
namespace {

// How long a wait for completions may last before it is looked at again.
constexpr absl::Duration kLongestWait = absl::Seconds(1);

// A device that completes nothing for so long is not waited for.
constexpr absl::Duration kLongestSilence = absl::Seconds(60);

constexpr int64_t kFillPiece = 1 << 20;

const char* NameOf(LoadKind kind) {
  switch (kind) {
    case LoadKind::kRead:
      return "read";
    case LoadKind::kWrite:
      return "write";
    case LoadKind::kMixed:
      return "mixed";
  }
  return "";
}

class ClosedLoop {
 public:
  ClosedLoop(const RateProbe& probe, LoadKind kind, int64_t piece_bytes,
             int64_t window_bytes)
      : probe_(probe), kind_(kind), piece_(piece_bytes) {
    const int64_t pieces = std::max<int64_t>(1, window_bytes / piece_bytes);
    TERRACE_CHECK(static_cast<int64_t>(probe.arena.size()) >= pieces * piece_);
    for (int64_t i = 0; i < pieces; ++i) slots_.push_back({});
    for (int64_t i = pieces; i-- > 0;) free_.push_back(static_cast<size_t>(i));
  }

  // Submits no more after `time`, nor more than `most` pieces.
  absl::StatusOr<RateProfile> Run(absl::Duration time, int64_t most) {
    const absl::Time start = probe_.clock->Now();
    absl::Time now = start;
    last_completion_ = start;
    while (true) {
      if (status_.ok() && now - start < time) Fill(most);
      if (free_.size() == slots_.size()) break;
      Drain();
      now = probe_.clock->Now();
      if (free_.size() < slots_.size() &&
          now - last_completion_ >= kLongestSilence) {
        return Silence();
      }
    }
    if (!status_.ok()) return status_;
    if (count_ == 0) {
      return absl::UnavailableError(absl::StrCat(
          "path '", probe_.path, "': the engine takes no request"));
    }
    const double seconds = absl::ToDoubleSeconds(last_completion_ - start);
    RateProfile rate;
    rate.direction = NameOf(kind_);
    rate.piece_bytes = piece_;
    rate.window_bytes = static_cast<int64_t>(slots_.size()) * piece_;
    rate.bytes_per_second = seconds > 0 ? Moved() / seconds : 0;
    std::sort(latencies_us_.begin(), latencies_us_.end());
    rate.latency_p50_us = Percentile(0.50);
    rate.latency_p99_us = Percentile(0.99);
    return rate;
  }

 private:
  struct Slot {
    IoRequest request;
    absl::Time submitted;
  };

  double Moved() const {
    return static_cast<double>(latencies_us_.size()) *
           static_cast<double>(piece_);
  }
  double Percentile(double share) const {
    if (latencies_us_.empty()) return 0;
    const auto last = static_cast<double>(latencies_us_.size() - 1);
    return latencies_us_[static_cast<size_t>(share * last + 0.5)];
  }

  // The next piece: both directions go through their own part of the file.
  IoRequest Next(size_t slot) {
    const bool mixed = kind_ == LoadKind::kMixed;
    const bool writes = kind_ == LoadKind::kWrite || (mixed && count_ % 2 == 1);
    const int64_t part = mixed ? probe_.file_bytes / 2 : probe_.file_bytes;
    const int64_t turn = mixed ? count_ / 2 : count_;
    const int64_t begin = mixed && writes ? part : 0;
    ++count_;
    return {.file = probe_.file,
            .direction = writes ? IoDirection::kWrite : IoDirection::kRead,
            .data = probe_.arena.data() + static_cast<int64_t>(slot) * piece_,
            .offset = begin + turn * piece_ % (part / piece_ * piece_),
            .size_bytes = piece_,
            .tag = slot};
  }

  absl::Status Silence() const {
    return absl::DeadlineExceededError(absl::StrCat(
        "path '", probe_.path, "': ", slots_.size() - free_.size(),
        " requests of ", piece_, " bytes (", NameOf(kind_),
        ") did not complete within ", absl::FormatDuration(kLongestSilence)));
  }

  void Fill(int64_t most) {
    while (!free_.empty() && count_ < most) {
      const size_t slot = free_.back();
      const int64_t count = count_;
      slots_[slot] = {Next(slot), probe_.clock->Now()};
      if (probe_.engine->Submit(
              absl::MakeConstSpan(&slots_[slot].request, 1)) == 0) {
        count_ = count;  // the engine is full
        return;
      }
      free_.pop_back();
    }
  }

  // Waits for at least one completion, and takes all that there are.
  void Drain() {
    IoResult results[16];
    probe_.engine->Wait(probe_.clock->Now() + kLongestWait);
    int got = 0;
    while ((got = probe_.engine->Poll(absl::MakeSpan(results))) > 0) {
      last_completion_ = probe_.clock->Now();
      for (int i = 0; i < got; ++i) Take(results[i]);
    }
  }

  void Take(const IoResult& result) {
    const Slot& slot = slots_[result.tag];
    free_.push_back(result.tag);
    latencies_us_.push_back(
        absl::ToDoubleMicroseconds(last_completion_ - slot.submitted));
    if (result.result == piece_ || !status_.ok()) return;
    status_ =
        IoError(probe_.path, slot.request,
                result.result < 0 ? static_cast<int>(-result.result) : EIO);
  }

  const RateProbe& probe_;
  const LoadKind kind_;
  const int64_t piece_;
  int64_t count_ = 0;  // pieces submitted
  std::vector<Slot> slots_;
  std::vector<size_t> free_;
  std::vector<double> latencies_us_;
  absl::Time last_completion_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<RateProfile> MeasureRate(const RateProbe& probe, LoadKind kind,
                                        int64_t piece_bytes,
                                        int64_t window_bytes,
                                        absl::Duration time) {
  return ClosedLoop(probe, kind, piece_bytes, window_bytes)
      .Run(time, INT64_MAX);
}

absl::Status WriteOnce(const RateProbe& probe) {
  const auto window = static_cast<int64_t>(probe.arena.size());
  const int64_t piece = std::min(kFillPiece, window);
  return ClosedLoop(probe, LoadKind::kWrite, piece, window)
      .Run(absl::InfiniteDuration(), probe.file_bytes / piece)
      .status();
}

}  // namespace terrace
