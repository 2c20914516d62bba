// Any engine as devices of a known rate, so that overlap can be measured on
// a machine whose disk is faster, slower or shared.
//
// I/O goes down at once; only its completion is held back until the server of
// its file and direction would have been done. Holding back the submission
// instead would make every limit look free.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aio/engine.h"
#include "base/check.h"

namespace terrace {
namespace {

// A sleep oversleeps by about the kernel's timer slack (50 us) and a wake-up;
// the rest of a wait is spun.
constexpr absl::Duration kSpin = absl::Microseconds(80);
constexpr absl::Duration kLate = absl::Milliseconds(1);

class PacedEngine final : public IoEngine {
 public:
  PacedEngine(std::unique_ptr<IoEngine> engine,
              std::function<PaceOptions(int)> pace_of, Clock& clock)
      : pace_of_(std::move(pace_of)),
        clock_(clock),
        engine_(std::move(engine)) {}

  absl::StatusOr<int> AddFile(int fd) override {
    absl::StatusOr<int> file = engine_->AddFile(fd);
    if (file.ok() && *file >= static_cast<int>(busy_until_.size())) {
      busy_until_.resize(*file + 1,
                         {absl::InfinitePast(), absl::InfinitePast()});
    }
    return file;
  }
  void RegisterArena(absl::Span<std::byte> arena) override {
    engine_->RegisterArena(arena);
  }

  int Submit(absl::Span<const IoRequest> requests) override {
    const absl::Time now = clock_.Now();
    const int taken = engine_->Submit(requests);
    for (const IoRequest& request : requests.first(taken)) {
      const int direction = request.direction == IoDirection::kRead ? 0 : 1;
      const PaceOptions pace = pace_of_(request.file);
      const int64_t rate = direction == 0 ? pace.read_bytes_per_second
                                          : pace.write_bytes_per_second;
      TERRACE_CHECK(rate >= 0);
      // What is no file of ours has no server; the engine below refuses it.
      const bool is_known = request.file >= 0 &&
                            request.file < static_cast<int>(busy_until_.size());
      if (rate == 0 || !is_known) continue;
      absl::Time& busy_until = busy_until_[request.file][direction];
      busy_until =
          std::max(now, busy_until) + absl::Seconds(request.size_bytes) / rate;
      const bool is_new = due_.try_emplace(request.tag, busy_until).second;
      TERRACE_CHECK(is_new);  // a tag is unique while in flight
    }
    return taken;
  }

  int Poll(absl::Span<IoResult> results) override {
    TakeLanded();
    const absl::Time now = clock_.Now();
    int n = 0;
    for (; n < static_cast<int>(results.size()) && !held_.empty(); ++n) {
      const auto& [due, result] = *held_.begin();
      if (due > now) break;
      if (due > absl::InfinitePast()) {
        ++paced_completions_;
        if (now - due > kLate) ++late_completions_;
      }
      results[n] = result;
      held_.erase(held_.begin());
    }
    return n;
  }

  void Wait(absl::Time deadline) override {
    // What the engine below completes on its own time is held, not seen:
    // without this, a wait would return for it again and again.
    TakeLanded();
    const absl::Time due =
        held_.empty() ? absl::InfiniteFuture() : held_.begin()->first;
    if (due > deadline) {
      engine_->Wait(deadline);
      return;
    }
    if (clock_.Now() < due - kSpin) {
      engine_->Wait(due - kSpin);
      if (clock_.Now() < due - kSpin) return;  // woken, or something landed
    }
    // Bounded, for a clock that only a test moves.
    for (int spins = 0; clock_.Now() < due && spins < 100'000; ++spins) {
      std::this_thread::yield();
    }
  }
  void Wake() override { engine_->Wake(); }

  absl::Time NextEvent() const override {
    const absl::Time below = engine_->NextEvent();
    return held_.empty() ? below : std::min(below, held_.begin()->first);
  }

  int Slots(int file) const override { return engine_->Slots(file); }

  absl::Status failure() const override { return engine_->failure(); }
  EngineInfo info() const override {
    EngineInfo info = engine_->info();
    for (size_t file = 0; file < busy_until_.size(); ++file) {
      const PaceOptions pace = pace_of_(static_cast<int>(file));
      absl::StrAppend(&info.reason, "; paced at ", pace.read_bytes_per_second,
                      " bytes/s read, ", pace.write_bytes_per_second,
                      " written");
    }
    info.paced_completions = paced_completions_;
    info.late_completions = late_completions_;
    return info;
  }

 private:
  // Moves what has really completed to the time at which it may be seen; of
  // equal times, in the order of completion.
  void TakeLanded() {
    IoResult landed[16];
    for (int n = 1; n > 0;) {
      n = engine_->Poll(absl::MakeSpan(landed));
      for (int i = 0; i < n; ++i) {
        absl::Time due = absl::InfinitePast();  // not paced
        const auto it = due_.find(landed[i].tag);
        if (it != due_.end()) {
          due = it->second;
          due_.erase(it);
        }
        held_.emplace(due, landed[i]);
      }
    }
  }

  const std::function<PaceOptions(int)> pace_of_;
  Clock& clock_;
  std::vector<std::array<absl::Time, 2>> busy_until_;  // per file
  std::unordered_map<uint64_t, absl::Time> due_;       // per tag in flight
  std::multimap<absl::Time, IoResult> held_;           // landed, by due
  int64_t paced_completions_ = 0;
  int64_t late_completions_ = 0;
  const std::unique_ptr<IoEngine> engine_;
};

}  // namespace

std::unique_ptr<IoEngine> MakePacedEngine(std::unique_ptr<IoEngine> engine,
                                          const PaceOptions& pace,
                                          Clock& clock) {
  return MakePacedEngine(
      std::move(engine), [pace](int /*file*/) { return pace; }, clock);
}

std::unique_ptr<IoEngine> MakePacedEngine(
    std::unique_ptr<IoEngine> engine,
    std::function<PaceOptions(int file)> pace_of, Clock& clock) {
  return std::make_unique<PacedEngine>(std::move(engine), std::move(pace_of),
                                       clock);
}

}  // namespace terrace
