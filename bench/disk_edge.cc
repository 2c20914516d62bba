#include "bench/disk_edge.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/time/time.h"
#include "aio/make_engine.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/io/io_load.h"
#include "bench/io/raw_threads.h"
#include "tiers/disk/disk_transport.h"

namespace terrace::bench {
namespace {

constexpr int64_t kPiece = 4 * kMiB;
constexpr int kDepth = 2;
constexpr int64_t kUnit = 2 * kMoveBytes;  // a move of each direction

}  // namespace

absl::StatusOr<std::unique_ptr<DiskEdge>> DiskEdge::Make(
    const std::string& directory, int64_t size_bytes) {
  const int64_t bytes = std::max(RoundDown(size_bytes, kUnit), kUnit);
  auto edge = std::unique_ptr<DiskEdge>(new DiskEdge);
  TERRACE_ASSIGN_OR_RETURN(edge->dram_,
                           HostArena::Create({.size_bytes = bytes}));
  const auto dram = edge->dram_->bytes();
  std::memset(dram.data(), 1, dram.size());
  TERRACE_ASSIGN_OR_RETURN(
      edge->file_,
      ScratchFile::Create(directory, bytes, FileState::kWritten, dram));
  const int fd = edge->file_->fd();
  TERRACE_ASSIGN_OR_RETURN(auto engine, MakeEngine(EngineKind::kAuto, {fd}));
  const bool has_ring = engine->info().name == "io_uring";
  edge->io_ = std::make_unique<IoPaths>(std::move(engine), SystemClock());
  edge->io_->RegisterArena(dram);
  TERRACE_RETURN_IF_ERROR(edge->io_->AddPath(directory, fd, {}).status());
  if (has_ring) {
    TERRACE_ASSIGN_OR_RETURN(edge->loop_, UringRawLoop::Create({fd}, dram));
  }
  return edge;
}

absl::StatusOr<Sample> DiskEdge::RunTransport(Way way) {
  DiskTransport transport(*io_);
  return RunMoves(
      transport, [this] { io_->Wait(absl::InfiniteFuture()); }, way,
      dram_->bytes());
}

absl::StatusOr<Sample> DiskEdge::RunLoop(Way way) {
  const int64_t bytes = size_bytes();
  Load load;
  load.read_bytes = way == Way::kUp ? bytes : way == Way::kBoth ? bytes / 2 : 0;
  load.written_bytes = bytes - load.read_bytes;
  load.footprint = bytes;
  LoadCursor cursor(load, dram_->bytes(), kPiece);
  const Stopwatch watch;
  TERRACE_RETURN_IF_ERROR(
      loop_ != nullptr
          ? loop_->Run(kDepth, [&](IoRequest* r) { return cursor.Next(r); })
          : RunRawThreads({file_->fd()}, load, dram_->bytes(), kPiece, kDepth));
  return watch.Stop(bytes);
}

}  // namespace terrace::bench
