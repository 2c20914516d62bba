// Both sides copy the same bytes between the same two ranges, in pieces of 4
// MiB on two streams: the transport with moves of 8 MiB and at most three
// pieces in a stream, the loop with all of them queued at once. So what the
// ratio shows is what polling, choosing and waking cost.
#include "bench/device.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "bench/copies.h"
#include "bench/gate.h"
#include "bench/io/load.h"
#include "bench/report/document.h"
#include "kernels/cuda/open_cuda.h"
#include "runtime/base/clock.h"
#include "runtime/base/status_macros.h"
#include "tiers/device/device_transport.h"
#include "tiers/memory/host_arena.h"

namespace terrace::bench {
namespace {

constexpr int64_t kPieceBytes = 4 * kMiB;

class Workbench {
 public:
  static absl::StatusOr<std::unique_ptr<Workbench>> Make(
      const std::string& place, int64_t size_bytes) {
    auto bench = std::unique_ptr<Workbench>(new Workbench(size_bytes));
    TERRACE_ASSIGN_OR_RETURN(auto device, OpenCuda(place));
    TERRACE_ASSIGN_OR_RETURN(bench->calls_, LoadCuda());
    bench->number_ = std::stoi(place.substr(place.find(':') + 1));
    TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<HostArena> dram,
                             HostArena::Create({.size_bytes = size_bytes}));
    bench->dram_ = dram->bytes();
    std::memset(bench->dram_.data(), 1, static_cast<size_t>(size_bytes));
    TERRACE_ASSIGN_OR_RETURN(bench->pinned_, device->Pin(dram, dram->bytes()));
    TERRACE_ASSIGN_OR_RETURN(bench->space_,
                             DeviceSpace::Create(device, size_bytes));
    return bench;
  }
  ~Workbench() {
    for (void* stream : streams_) calls_->destroy_stream(number_, stream);
  }

  absl::StatusOr<Sample> RunTransport(Way way) {
    Signal ended;
    DeviceTransport transport(kCopiedTier, space_, SystemClock(),
                              [&ended] { ended.Set(); },
                              {.piece_bytes = kPieceBytes});
    return RunMoves(transport, ended, way, dram_);
  }

  absl::StatusOr<Sample> RunLoop(Way way) {
    while (streams_.size() < 2) {
      streams_.push_back(nullptr);
      TERRACE_RETURN_IF_ERROR(
          Check(calls_->make_stream(number_, &streams_.back())));
    }
    const Stopwatch watch;
    for (int64_t at = 0; at < size_bytes_; at += kPieceBytes) {
      const bool up = IsUp(way, at);
      void* const device = space_->At(at);
      void* const host = dram_.data() + at;
      TERRACE_RETURN_IF_ERROR(Check(calls_->copy(
          number_, up ? host : device, up ? device : host,
          static_cast<size_t>(std::min(kPieceBytes, size_bytes_ - at)),
          up ? 0 : 1, streams_[up ? 0 : 1])));
    }
    for (void* stream : streams_) {
      TERRACE_RETURN_IF_ERROR(
          Check(calls_->synchronize_stream(number_, stream)));
    }
    return watch.Stop(size_bytes_);
  }

 private:
  explicit Workbench(int64_t size_bytes) : size_bytes_(size_bytes) {}

  absl::Status Check(int code) const {
    if (code == 0) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("the raw loop: ", calls_->error_name(code)));
  }

  const int64_t size_bytes_;
  const TerraceCudaCalls* calls_ = nullptr;
  int number_ = 0;
  absl::Span<std::byte> dram_;  // of the mapping that is pinned
  PinnedMapping pinned_;
  std::shared_ptr<DeviceSpace> space_;
  std::vector<void*> streams_;  // of the loop: up, down
};

absl::Status AddRows(Workbench& bench, int64_t rounds, Gate& gate,
                     Section* section) {
  for (const Way way : {Way::kDown, Way::kUp, Way::kBoth}) {
    TERRACE_RETURN_IF_ERROR(AddBeside(
        NameOf(way), [&] { return bench.RunTransport(way); }, "cudaMemcpyAsync",
        [&] { return bench.RunLoop(way); }, rounds, gate, section));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDeviceBenchmark(const Flags& flags) {
  TERRACE_ASSIGN_OR_RETURN(const int64_t size,
                           flags.number("size", 256 * kMiB));
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 11));
  TERRACE_ASSIGN_OR_RETURN(const int64_t wait, flags.number("gate", 10));
  if (size < kMiB || size > 64 * kGiB || rounds < 1 || rounds > 1000) {
    return absl::InvalidArgumentError(
        absl::StrCat("out of range: --size ", size, " (1M to 64G), --rounds ",
                     rounds, " (1 to 1000)"));
  }
  Gate gate(
      {.enabled = wait > 0, .max_wait_seconds = static_cast<double>(wait)});
  const std::string place = flags.text("device", "cuda:0");
  TERRACE_ASSIGN_OR_RETURN(const auto bench, Workbench::Make(place, size));
  Section section;
  section.title = absl::StrCat("Copies between DRAM and ", place);
  TERRACE_RETURN_IF_ERROR(AddRows(*bench, rounds, gate, &section));
  section.text = absl::StrFormat(
      "%d MiB a run, in pieces of 4 MiB; moves of 8 MiB, of both directions in "
      "turn where both are copied. %d runs, %d of them disturbed.",
      size / kMiB, gate.runs(), gate.disturbed());
  PrintSection(section, flags.has("json"));
  return absl::OkStatus();
}

}  // namespace terrace::bench
