#include "tests/support/fault_engine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"

namespace terrace {

void FaultPlan::FailCall(int64_t n, const Fault& fault, CallFilter filter,
                         int64_t times) {
  MutexLock lock(mutex_);
  aimed_.push_back({Count(filter) + n, times, filter, fault, false});
}

void FaultPlan::FailPlace(int64_t n, const Fault& fault, CallFilter filter) {
  MutexLock lock(mutex_);
  aimed_.push_back({Count(filter) + n, 1, filter, fault, true});
}

void FaultPlan::FailFile(int file, const Fault& fault, CallFilter filter) {
  MutexLock lock(mutex_);
  files_.push_back({file, filter, fault});
}

void FaultPlan::SetChances(const FaultChances& chances) {
  MutexLock lock(mutex_);
  chances_ = chances;
  random_faults_ = true;
}

void FaultPlan::Clear() {
  MutexLock lock(mutex_);
  aimed_.clear();
  places_.clear();
  files_.clear();
  random_faults_ = false;
  calls_[0] = calls_[1] = faults_ = 0;
  ++releases_;
}

void FaultPlan::Release() {
  MutexLock lock(mutex_);
  ++releases_;
}

int64_t FaultPlan::calls(CallFilter filter) const {
  MutexLock lock(mutex_);
  return Count(filter);
}

int64_t FaultPlan::Count(CallFilter filter) const {
  switch (filter) {
    case CallFilter::kReads:
      return calls_[0];
    case CallFilter::kWrites:
      return calls_[1];
    case CallFilter::kAny:
      break;
  }
  return calls_[0] + calls_[1];
}

int64_t FaultPlan::faults() const {
  MutexLock lock(mutex_);
  return faults_;
}

IoRequest FaultPlan::first_disturbed() const {
  MutexLock lock(mutex_);
  return first_disturbed_;
}

int64_t FaultPlan::releases() const {
  MutexLock lock(mutex_);
  return releases_;
}

uint64_t FaultPlan::Draw() {
  MutexLock lock(mutex_);
  return random_();
}

Fault FaultPlan::Next(const IoRequest& request) {
  MutexLock lock(mutex_);
  const Fault fault = Choose(request);
  if (fault.kind != FaultKind::kNone && ++faults_ == 1) {
    first_disturbed_ = request;
  }
  return fault;
}

bool FaultPlan::Takes(CallFilter filter, const IoRequest& request) {
  const bool is_write = request.direction == IoDirection::kWrite;
  return filter == CallFilter::kAny ||
         (filter == CallFilter::kWrites) == is_write;
}

Fault FaultPlan::Choose(const IoRequest& request) {
  const bool is_write = request.direction == IoDirection::kWrite;
  ++calls_[is_write ? 1 : 0];
  for (const Aimed& aimed : aimed_) {
    if (!Takes(aimed.filter, request)) continue;
    const int64_t call = aimed.filter == CallFilter::kAny
                             ? calls_[0] + calls_[1]
                             : calls_[is_write ? 1 : 0];
    if (call < aimed.first || call - aimed.first >= aimed.times) continue;
    if (aimed.keeps_place) places_.push_back({request, aimed.fault});
    return aimed.fault;
  }
  for (const File& file : files_) {
    if (file.file == request.file && Takes(file.filter, request)) {
      return file.fault;
    }
  }
  for (const Place& place : places_) {
    const IoRequest& failed = place.request;
    if (failed.file == request.file && failed.direction == request.direction &&
        failed.offset < request.offset + request.size_bytes &&
        request.offset < failed.offset + failed.size_bytes) {
      return place.fault;
    }
  }
  return random_faults_ ? Random(request.direction) : Fault{FaultKind::kNone};
}

Fault FaultPlan::Random(IoDirection direction) {
  const double chances[] = {
      chances_.error,          chances_.again, chances_.no_space,
      chances_.short_transfer, chances_.delay, chances_.reorder,
      chances_.bit_flip,       chances_.never, chances_.partial_submit};
  double draw = std::uniform_real_distribution<double>(0, 1)(random_);
  size_t chosen = 0;
  while (chosen < std::size(chances) && draw >= chances[chosen]) {
    draw -= chances[chosen++];
  }
  const absl::Duration delay =
      absl::Microseconds(static_cast<int64_t>(random_() % 5000));
  switch (chosen) {
    case 0:
      return {FaultKind::kError, EIO, delay};
    case 1:
      return {FaultKind::kError, random_() % 2 == 0 ? EAGAIN : EINTR, delay};
    case 2:
      if (direction == IoDirection::kRead) return {};
      return {FaultKind::kError, ENOSPC, delay};
    case 3:
      return {FaultKind::kShort, 0, delay};
    case 4:
      return {FaultKind::kDelay, 0, delay};
    case 5:
      return {FaultKind::kReorder, 0, delay};
    case 6:
      return {FaultKind::kBitFlip, 0, delay};
    case 7:
      return {FaultKind::kNever, 0, delay};
    case 8:
      return {FaultKind::kPartialSubmit, 0, delay};
    default:
      return {};
  }
}

namespace {

struct FreeBuffer {
  void operator()(std::byte* buffer) const { std::free(buffer); }
};

void FlipBit(std::byte* data, int64_t size_bytes, const Fault& fault,
             uint64_t draw) {
  auto bit =
      static_cast<int64_t>(draw % (static_cast<uint64_t>(size_bytes) * 8));
  if (fault.flipped_byte >= 0 && fault.flipped_byte < size_bytes) {
    bit = fault.flipped_byte * 8 + bit % 8;
  }
  data[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
}

class FaultEngine final : public IoEngine {
 public:
  FaultEngine(std::unique_ptr<IoEngine> engine, std::shared_ptr<FaultPlan> plan,
              Clock& clock)
      : plan_(std::move(plan)),
        clock_(clock),
        releases_seen_(plan_->releases()),
        engine_(std::move(engine)) {}

  absl::StatusOr<int> AddFile(int fd) override { return engine_->AddFile(fd); }
  void RegisterArena(absl::Span<std::byte> arena) override {
    engine_->RegisterArena(arena);
  }
  bool UnregisterArena(absl::Span<std::byte> part) override {
    return engine_->UnregisterArena(part);
  }

  int Submit(absl::Span<const IoRequest> requests) override {
    int taken = 0;
    for (const IoRequest& request : requests) {
      const Fault fault = plan_->Next(request);
      if (fault.kind == FaultKind::kPartialSubmit) break;
      Take(request, fault);
      ++taken;
    }
    SubmitBacklog();
    return taken;
  }

  int Poll(absl::Span<IoResult> results) override {
    TakeReleased();
    SubmitBacklog();
    IoResult below[64];
    for (int n = 1; n > 0;) {
      n = engine_->Poll(absl::MakeSpan(below));
      for (int i = 0; i < n; ++i) Land(below[i]);
    }
    const absl::Time now = clock_.Now();
    for (auto it = late_.begin(); it != late_.end() && it->first <= now;
         it = late_.erase(it)) {
      ready_.push_back(it->second.result);
    }
    int n = 0;
    for (; n < static_cast<int>(results.size()) && !ready_.empty(); ++n) {
      results[n] = ready_.front();
      ready_.pop_front();
    }
    return n;
  }

  void Wait(absl::Time deadline) override {
    TakeReleased();
    SubmitBacklog();
    if (!ready_.empty()) return;
    engine_->Wait(std::min(deadline, HeldUntil()));
  }
  void Wake() override { engine_->Wake(); }

  absl::Time NextEvent() const override {
    if (!ready_.empty()) return clock_.Now();
    return std::min(engine_->NextEvent(), HeldUntil());
  }

  int Slots(int file) const override { return engine_->Slots(file); }
  absl::Status failure() const override { return engine_->failure(); }
  EngineInfo info() const override {
    EngineInfo info = engine_->info();
    info.name = absl::StrCat("faulty ", info.name);
    return info;
  }

 private:
  struct Flight {
    IoRequest request;
    Fault fault;
    std::unique_ptr<std::byte, FreeBuffer> copy;  // of a flipped write
  };

  absl::Time HeldUntil() const {
    return late_.empty() ? absl::InfiniteFuture() : late_.begin()->first;
  }

  void Take(const IoRequest& request, const Fault& fault) {
    switch (fault.kind) {
      case FaultKind::kError:
        ready_.push_back({request.tag, -fault.error});
        return;
      case FaultKind::kZero:
        ready_.push_back({request.tag, 0});
        return;
      case FaultKind::kNever:
        never_.push_back(request);
        return;
      default:
        break;
    }
    Flight flight{request, fault, nullptr};
    IoRequest passed = request;
    if (fault.kind == FaultKind::kShort) {
      passed.size_bytes = std::max<int64_t>(request.size_bytes / 1024, 1) * 512;
    } else if (fault.kind == FaultKind::kBitFlip &&
               request.direction == IoDirection::kWrite) {
      flight.copy.reset(static_cast<std::byte*>(std::aligned_alloc(
          kBlockBytes,
          static_cast<size_t>(RoundUp(request.size_bytes, kBlockBytes)))));
      TERRACE_CHECK(flight.copy != nullptr);
      std::memcpy(flight.copy.get(), request.data,
                  static_cast<size_t>(request.size_bytes));
      FlipBit(flight.copy.get(), request.size_bytes, fault, plan_->Draw());
      passed.data = flight.copy.get();
    }
    const bool is_new =
        flights_.try_emplace(request.tag, std::move(flight)).second;
    TERRACE_CHECK(is_new);  // a tag is unique while in flight
    backlog_.push_back(passed);
  }

  void TakeReleased() {
    const int64_t releases = plan_->releases();
    if (releases == releases_seen_) return;
    releases_seen_ = releases;
    for (const IoRequest& request : std::exchange(never_, {})) {
      Take(request, Fault{});
    }
  }

  void SubmitBacklog() {
    while (!backlog_.empty()) {
      if (engine_->Submit(absl::MakeConstSpan(&backlog_.front(), 1)) == 0) {
        return;
      }
      backlog_.pop_front();
    }
  }

  void Land(IoResult result) {
    const auto it = flights_.find(result.tag);
    TERRACE_CHECK(it != flights_.end());
    const Flight flight = std::move(it->second);
    flights_.erase(it);
    const absl::Time due = clock_.Now() + flight.fault.delay;
    switch (flight.fault.kind) {
      case FaultKind::kErrorAfter:
        result.result = -flight.fault.error;
        break;
      case FaultKind::kBitFlip:
        if (flight.copy == nullptr && result.result > 0) {
          FlipBit(flight.request.data, result.result, flight.fault,
                  plan_->Draw());
        }
        break;
      case FaultKind::kDelay:
        late_.emplace(due, Late{result, false});
        return;
      case FaultKind::kReorder:
        late_.emplace(due, Late{result, true});
        return;
      default:
        break;
    }
    Deliver(result);
  }

  struct Late {
    IoResult result;
    bool until_overtaken = false;
  };

  // What this result overtook comes right after it.
  void Deliver(IoResult result) {
    ready_.push_back(result);
    for (auto it = late_.begin(); it != late_.end();) {
      if (!it->second.until_overtaken) {
        ++it;
        continue;
      }
      ready_.push_back(it->second.result);
      it = late_.erase(it);
    }
  }

  const std::shared_ptr<FaultPlan> plan_;
  Clock& clock_;
  int64_t releases_seen_;
  std::unordered_map<uint64_t, Flight> flights_;  // by tag
  std::deque<IoRequest> backlog_;                 // the engine below was full
  std::vector<IoRequest> never_;
  std::multimap<absl::Time, Late> late_;  // by the time of delivery
  std::deque<IoResult> ready_;
  std::unique_ptr<IoEngine> engine_;  // last: it may still read the copies
};

}  // namespace

std::unique_ptr<IoEngine> MakeFaultEngine(std::unique_ptr<IoEngine> engine,
                                          std::shared_ptr<FaultPlan> plan,
                                          Clock& clock) {
  return std::make_unique<FaultEngine>(std::move(engine), std::move(plan),
                                       clock);
}

}  // namespace terrace
