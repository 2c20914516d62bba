// Several files as several paths of one queue: in the folders that were given,
// else two in the one.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/io/io_bench.h"
#include "bench/io/queue_side.h"
#include "bench/io/raw_threads.h"
#include "bench/io/scratch_file.h"
#include "bench/io/uring_raw_loop.h"
#include "bench/rounds.h"

namespace terrace::bench {
namespace {

constexpr int64_t kPiece = 4 * kMiB;
constexpr int64_t kWindow = 8 * kMiB;  // of each path

struct Paths {
  std::vector<std::unique_ptr<ScratchFile>> files;
  std::vector<int> fds;
  std::unique_ptr<QueueSide> queue;
  std::vector<int> paths;
  std::unique_ptr<UringRawLoop> raw;  // null: no io_uring

  absl::Status Setup(const IoBench& bench) {
    std::vector<std::string> folders = bench.directories;
    if (folders.size() == 1) folders.push_back(folders[0]);
    const auto count = static_cast<int64_t>(folders.size());
    const int64_t size =
        bench.size_bytes / count / (2 * kTransfer) * 2 * kTransfer;
    TERRACE_ASSIGN_OR_RETURN(auto engine, MakeEngine(bench.engine));
    const bool is_ring = engine->info().name == "io_uring";
    queue = std::make_unique<QueueSide>(std::move(engine));
    queue->RegisterArena(bench.bulk);
    for (const std::string& folder : folders) {
      TERRACE_ASSIGN_OR_RETURN(
          auto file,
          ScratchFile::Create(folder, size, FileState::kWritten, bench.bulk));
      fds.push_back(file->fd());
      files.push_back(std::move(file));
      TERRACE_ASSIGN_OR_RETURN(
          const int path, queue->AddPath(fds.back(), Fixed(kPiece, kWindow)));
      paths.push_back(path);
    }
    if (!is_ring) return absl::OkStatus();
    TERRACE_ASSIGN_OR_RETURN(raw, UringRawLoop::Create(fds, bench.bulk));
    return absl::OkStatus();
  }
};

std::vector<Contender> ContendersOf(const IoBench& bench, const Load& load,
                                    const char* direction, Paths& paths) {
  const int depth = static_cast<int>(kWindow / kPiece) * load.files;
  const bool has_ring = paths.raw != nullptr;
  const auto queue = [&bench, load, &paths]() -> absl::StatusOr<Sample> {
    const Stopwatch watch;
    Order order;
    order.ahead = 4 * load.files;
    TERRACE_ASSIGN_OR_RETURN(
        const int64_t moved,
        paths.queue->Run(load, bench.bulk, paths.paths, order));
    return watch.Stop(moved);
  };
  const auto raw = [&bench, load, &paths, depth]() -> absl::StatusOr<Sample> {
    const Stopwatch watch;
    LoadCursor cursor(load, bench.bulk, kPiece);
    const auto next = [&](IoRequest* request) { return cursor.Next(request); };
    TERRACE_RETURN_IF_ERROR(
        paths.raw != nullptr
            ? paths.raw->Run(depth, next)
            : RunRawThreads(paths.fds, load, bench.bulk, kPiece, depth));
    return watch.Stop(load.total());
  };
  return {{absl::StrCat(direction, ", queue"), queue},
          {absl::StrCat(direction,
                        has_ring ? ", raw io_uring" : ", raw pread/pwrite"),
           raw}};
}

}  // namespace

absl::StatusOr<Section> MeasurePaths(const IoBench& bench) {
  Paths paths;
  TERRACE_RETURN_IF_ERROR(paths.Setup(bench));
  const int files = static_cast<int>(paths.files.size());
  const int64_t size = paths.files[0]->size_bytes() * files;
  Section section;
  section.title = absl::StrCat(files, " paths at once");
  section.text = absl::StrCat(
      "A file and a queue of 4 MiB x 2 for each path",
      bench.directories.size() == 1 ? ", both on one disk" : "",
      "; the raw loop keeps as many requests in flight, and no account of "
      "whose they are.");
  const std::pair<const char*, Load> loads[] = {
      {"read", {size, 0, files}},
      {"write", {0, size, files}},
      {"mixed", {size / 2, size / 2, files}}};
  for (const auto& [direction, load] : loads) {
    TERRACE_ASSIGN_OR_RETURN(
        const Rounds rounds,
        Rounds::Run(ContendersOf(bench, load, direction, paths), bench.rounds,
                    *bench.gate));
    for (int i = 0; i < rounds.size(); ++i) {
      section.rates.push_back({rounds.name(i), rounds.Of(i, Figure::kRate),
                               rounds.Of(i, Figure::kCpu), ""});
    }
    section.ratios.push_back({rounds.name(0), rounds.name(1), "MiB/s",
                              rounds.Ratio(0, 1, Figure::kRate),
                              Bar{0.98, true}, "", ""});
  }
  return section;
}

}  // namespace terrace::bench
