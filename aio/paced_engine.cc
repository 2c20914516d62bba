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

// When a server of that rate is done with `bytes` that come now; InfinitePast:
// it is not paced.
absl::Time DoneAt(int64_t bytes_per_second, int64_t bytes, absl::Time now,
                  absl::Time* busy_until) {
  TERRACE_CHECK(bytes_per_second >= 0);
  if (bytes_per_second == 0) return absl::InfinitePast();
  *busy_until =
      std::max(now, *busy_until) + absl::Seconds(bytes) / bytes_per_second;
  return *busy_until;
}

int64_t RateOf(const PaceOptions& pace, IoDirection direction) {
  return direction == IoDirection::kRead ? pace.read_bytes_per_second
                                         : pace.write_bytes_per_second;
}

// The servers of an engine's files.
class FileServers {
 public:
  virtual ~FileServers() = default;
  virtual PaceOptions PaceOf(int file) const = 0;
  virtual absl::Time Serve(const IoRequest& request, absl::Time now) = 0;
};

class OwnServers final : public FileServers {
 public:
  explicit OwnServers(std::function<PaceOptions(int)> pace_of)
      : pace_of_(std::move(pace_of)) {}

  PaceOptions PaceOf(int file) const override { return pace_of_(file); }
  absl::Time Serve(const IoRequest& request, absl::Time now) override {
    const auto file = static_cast<size_t>(request.file);
    if (file >= busy_until_.size()) {
      busy_until_.resize(file + 1,
                         {absl::InfinitePast(), absl::InfinitePast()});
    }
    return DoneAt(RateOf(pace_of_(request.file), request.direction),
                  request.size_bytes, now,
                  &busy_until_[file][static_cast<size_t>(request.direction)]);
  }

 private:
  const std::function<PaceOptions(int)> pace_of_;
  std::vector<std::array<absl::Time, 2>> busy_until_;  // per file
};

class SharedServers final : public FileServers {
 public:
  explicit SharedServers(std::vector<std::shared_ptr<PacedDevice>> devices)
      : devices_(std::move(devices)) {}

  PaceOptions PaceOf(int file) const override { return of(file).pace(); }
  absl::Time Serve(const IoRequest& request, absl::Time now) override {
    return of(request.file).Serve(request.direction, request.size_bytes, now);
  }

 private:
  PacedDevice& of(int file) const {
    TERRACE_CHECK(file < static_cast<int>(devices_.size()));
    return *devices_[static_cast<size_t>(file)];
  }

  const std::vector<std::shared_ptr<PacedDevice>> devices_;
};

class PacedEngine final : public IoEngine {
 public:
  PacedEngine(std::unique_ptr<IoEngine> engine,
              std::unique_ptr<FileServers> servers, Clock& clock)
      : servers_(std::move(servers)),
        clock_(clock),
        engine_(std::move(engine)) {}

  absl::StatusOr<int> AddFile(int fd) override {
    absl::StatusOr<int> file = engine_->AddFile(fd);
    if (file.ok()) files_ = std::max(files_, *file + 1);
    return file;
  }
  void RegisterArena(absl::Span<std::byte> arena) override {
    engine_->RegisterArena(arena);
  }
  bool UnregisterArena(absl::Span<std::byte> part) override {
    return engine_->UnregisterArena(part);
  }

  int Submit(absl::Span<const IoRequest> requests) override {
    const absl::Time now = clock_.Now();
    const int taken = engine_->Submit(requests);
    for (const IoRequest& request : requests.first(taken)) {
      // What is no file of ours has no server; the engine below refuses it.
      if (request.file < 0 || request.file >= files_) continue;
      const absl::Time done = servers_->Serve(request, now);
      if (done == absl::InfinitePast()) continue;
      const bool is_new = due_.try_emplace(request.tag, done).second;
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
    for (int file = 0; file < files_; ++file) {
      const PaceOptions pace = servers_->PaceOf(file);
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

  const std::unique_ptr<FileServers> servers_;
  Clock& clock_;
  int files_ = 0;
  std::unordered_map<uint64_t, absl::Time> due_;  // per tag in flight
  std::multimap<absl::Time, IoResult> held_;      // landed, by due
  int64_t paced_completions_ = 0;
  int64_t late_completions_ = 0;
  const std::unique_ptr<IoEngine> engine_;
};

}  // namespace

absl::Time PacedDevice::Serve(IoDirection direction, int64_t bytes,
                              absl::Time now) {
  MutexLock lock(mutex_);
  return DoneAt(RateOf(pace_, direction), bytes, now,
                &busy_until_[static_cast<size_t>(direction)]);
}

std::unique_ptr<IoEngine> MakePacedEngine(
    std::unique_ptr<IoEngine> engine,
    std::vector<std::shared_ptr<PacedDevice>> devices, Clock& clock) {
  return std::make_unique<PacedEngine>(
      std::move(engine), std::make_unique<SharedServers>(std::move(devices)),
      clock);
}

std::unique_ptr<IoEngine> MakePacedEngine(std::unique_ptr<IoEngine> engine,
                                          const PaceOptions& pace,
                                          Clock& clock) {
  return MakePacedEngine(
      std::move(engine), [pace](int /*file*/) { return pace; }, clock);
}

std::unique_ptr<IoEngine> MakePacedEngine(
    std::unique_ptr<IoEngine> engine,
    std::function<PaceOptions(int file)> pace_of, Clock& clock) {
  return std::make_unique<PacedEngine>(
      std::move(engine), std::make_unique<OwnServers>(std::move(pace_of)),
      clock);
}

}  // namespace terrace
