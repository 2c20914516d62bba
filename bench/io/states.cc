// The price of a file's state: a write that must first find room, or make the
// file longer, is handed to a worker thread.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/io/io_bench.h"
#include "bench/io/queue_side.h"
#include "bench/io/raw_threads.h"
#include "bench/io/ring_workers.h"
#include "bench/io/scratch_file.h"
#include "bench/io/uring_raw_loop.h"
#include "bench/rounds.h"

namespace terrace::bench {
namespace {

constexpr int64_t kStatesPiece = 4 * kMiB;
constexpr int64_t kStatesWindow = 8 * kMiB;

// Each run has a file of its own, which it leaves written.
absl::StatusOr<Sample> RunQueue(const IoBench& bench, FileState state,
                                const Load& load) {
  TERRACE_ASSIGN_OR_RETURN(
      const auto file, ScratchFile::Create(bench.directories[0], load.total(),
                                           state, bench.bulk));
  TERRACE_ASSIGN_OR_RETURN(auto engine, MakeEngine(bench.engine));
  QueueSide queue(std::move(engine));
  queue.RegisterArena(bench.bulk);
  TERRACE_ASSIGN_OR_RETURN(
      const int path,
      queue.AddPath(file->fd(), Fixed(kStatesPiece, kStatesWindow)));
  const Stopwatch watch;
  TERRACE_ASSIGN_OR_RETURN(const int64_t moved,
                           queue.Run(load, bench.bulk, {path}, Order()));
  return watch.Stop(moved);
}

absl::StatusOr<Sample> RunRaw(const IoBench& bench, FileState state,
                              const Load& load) {
  TERRACE_ASSIGN_OR_RETURN(
      const auto file, ScratchFile::Create(bench.directories[0], load.total(),
                                           state, bench.bulk));
  const int depth = static_cast<int>(kStatesWindow / kStatesPiece);
  const auto loop = UringRawLoop::Create({file->fd()}, bench.bulk);
  LoadCursor cursor(load, bench.bulk, kStatesPiece);
  const Stopwatch watch;
  TERRACE_RETURN_IF_ERROR(
      loop.ok()
          ? (*loop)->Run(depth, [&](IoRequest* r) { return cursor.Next(r); })
          : RunRawThreads({file->fd()}, load, bench.bulk, kStatesPiece, depth));
  return watch.Stop(load.total());
}

}  // namespace

absl::StatusOr<Section> MeasureStates(const IoBench& bench) {
  Section section;
  section.title = "Writes by the state of the file";
  const Load load{0, bench.size_bytes / 2};
  section.text = absl::StrCat(
      load.total() / kMiB,
      " MiB into a new file each run, 4 MiB x 2. Worker "
      "threads are the ring's: where there is one, a write was not "
      "asynchronous.");
  const FileState states[] = {FileState::kWritten, FileState::kAllocated,
                              FileState::kSparse, FileState::kEmpty};
  std::vector<Contender> contenders;
  std::vector<std::string> notes;
  for (const FileState state : states) {
    // Before the rounds, from the state that needs none to those that do:
    // workers stay for seconds.
    TERRACE_RETURN_IF_ERROR(RunQueue(bench, state, load).status());
    notes.push_back(absl::StrCat(CountRingWorkers(), " worker threads"));
    contenders.push_back({absl::StrCat(NameOf(state), ", queue"),
                          [&, state] { return RunQueue(bench, state, load); }});
    contenders.push_back({absl::StrCat(NameOf(state), ", raw loop"),
                          [&, state] { return RunRaw(bench, state, load); }});
  }
  TERRACE_ASSIGN_OR_RETURN(const Rounds rounds,
                           Rounds::Run(contenders, bench.rounds, *bench.gate));
  Chart chart;
  chart.kind = Chart::Kind::kBars;
  chart.title = "Writes by the state of the file";
  chart.x_label = "MiB/s";
  chart.series = {{"queue", {}}, {"raw loop", {}}};
  for (int i = 0; i < rounds.size(); ++i) {
    const Spread rate = rounds.Of(i, Figure::kRate);
    section.rates.push_back({rounds.name(i), rate, rounds.Of(i, Figure::kCpu),
                             i % 2 == 0 ? notes[i / 2] : ""});
    if (i % 2 == 0) {
      chart.categories.emplace_back(NameOf(states[i / 2]));
      section.ratios.push_back({rounds.name(i), rounds.name(i + 1), "MiB/s",
                                rounds.Ratio(i, i + 1, Figure::kRate),
                                std::nullopt, notes[i / 2], ""});
    }
    chart.series[i % 2].points.push_back(
        {static_cast<double>(i / 2), rate.median, rate.minimum, rate.maximum});
  }
  section.charts.push_back(std::move(chart));
  return section;
}

}  // namespace terrace::bench
