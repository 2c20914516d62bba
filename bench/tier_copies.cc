#include "bench/tier_copies.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace::bench {
void Signal::Set() {
  MutexLock lock(mutex_);
  set_ = true;
  changed_.Signal();
}

void Signal::Await() {
  MutexLock lock(mutex_);
  while (!set_) changed_.Wait(mutex_);
  set_ = false;
}

void Signal::AwaitFor(absl::Duration at_most) {
  MutexLock lock(mutex_);
  if (!set_) changed_.WaitFor(mutex_, at_most);
  set_ = false;
}

bool IsUp(Way way, int64_t offset) {
  return way == Way::kBoth ? offset / kMoveBytes % 2 == 0 : way == Way::kUp;
}

const char* NameOf(Way way) {
  return way == Way::kUp     ? "to DRAM"
         : way == Way::kDown ? "from DRAM"
                             : "both ways";
}

absl::StatusOr<Sample> RunMoves(Transport& transport,
                                const std::function<void()>& wait, Way way,
                                absl::Span<std::byte> dram) {
  const auto size_bytes = static_cast<int64_t>(dram.size());
  const Stopwatch watch;
  for (int64_t at = 0; at < size_bytes; at += kMoveBytes) {
    Move move;
    move.tag = static_cast<uint64_t>(at);
    move.edge = IsUp(way, at) ? Edge{kCopiedTier, kDramTier}
                              : Edge{kDramTier, kCopiedTier};
    move.from = move.to = {at, std::min(kMoveBytes, size_bytes - at)};
    move.data = dram.data() + at;
    transport.Begin(move);
  }
  std::vector<Moved> moved;
  while (true) {
    transport.Poll(&moved);
    if (transport.pending() == 0) break;
    wait();
  }
  const Sample sample = watch.Stop(size_bytes);
  for (const Moved& each : moved) TERRACE_RETURN_IF_ERROR(each.status);
  return sample;
}

absl::Status AddBeside(const std::string& name,
                       std::function<absl::StatusOr<Sample>()> transport,
                       const std::string& bound,
                       std::function<absl::StatusOr<Sample>()> loop,
                       std::optional<Bar> bar, int64_t rounds, Gate& gate,
                       Section* section) {
  const std::vector<Contender> contenders = {
      {name, std::move(transport)},
      {absl::StrCat(name, ", ", bound), std::move(loop)}};
  TERRACE_ASSIGN_OR_RETURN(
      const Rounds result,
      Rounds::Run(contenders, static_cast<int>(rounds), gate));
  for (int i = 0; i < result.size(); ++i) {
    section->rates.push_back({result.name(i), result.Of(i, Figure::kRate),
                              result.Of(i, Figure::kCpu), ""});
  }
  RatioRow row;
  row.subject = name;
  row.bound = bound;
  row.figure = "MiB/s";
  row.ratio = result.Ratio(0, 1, Figure::kRate);
  row.bar = bar;
  section->ratios.push_back(row);
  return absl::OkStatus();
}

}  // namespace terrace::bench
