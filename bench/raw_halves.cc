#include "bench/raw_halves.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/status_macros.h"
#include "bench/io/raw_threads.h"

namespace terrace::bench {
namespace {

constexpr int64_t kHalfPiece = 4 * kMiB;
constexpr int kHalfDepth = 2;

}  // namespace

absl::StatusOr<std::unique_ptr<RawHalves>> RawHalves::Make(
    const std::string& directory, int64_t half_bytes, int64_t memory_bytes) {
  auto raw = std::unique_ptr<RawHalves>(new RawHalves);
  const int64_t half = half_bytes / kHalfPiece * kHalfPiece;
  raw->load_ = {half, half};
  raw->load_.footprint = std::max(memory_bytes / kHalfPiece * kHalfPiece,
                                  2 * kHalfDepth * kHalfPiece);
  HostArenaOptions memory;
  memory.size_bytes = raw->load_.footprint;
  TERRACE_ASSIGN_OR_RETURN(raw->arena_, HostArena::Create(memory));
  std::mt19937_64 random(1);
  const auto bytes = raw->arena_->bytes();
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    *reinterpret_cast<uint64_t*>(bytes.data() + at) = random();
  }
  TERRACE_ASSIGN_OR_RETURN(
      raw->file_,
      ScratchFile::Create(directory, 2 * half, FileState::kWritten, bytes));
  auto loop = UringRawLoop::Create({raw->file_->fd()}, bytes);
  if (loop.ok()) raw->loop_ = *std::move(loop);
  return raw;
}

absl::StatusOr<int64_t> RawHalves::Run() {
  LoadCursor cursor(load_, arena_->bytes(), kHalfPiece);
  TERRACE_RETURN_IF_ERROR(
      loop_ != nullptr
          ? loop_->Run(kHalfDepth, [&](IoRequest* r) { return cursor.Next(r); })
          : RunRawThreads({file_->fd()}, load_, arena_->bytes(), kHalfPiece,
                          kHalfDepth));
  return load_.total();
}

}  // namespace terrace::bench
