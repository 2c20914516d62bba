// Both sides copy the same bytes between the same two ranges, in pieces of 4
// MiB on two streams: the transport with moves of 8 MiB and at most three
// pieces in a stream, the loop with all of them queued at once. So what the
// ratio shows is what polling, choosing and waking cost.
#include "bench/device_bench.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/gate.h"
#include "bench/io/io_load.h"
#include "bench/report/document.h"
#include "bench/tier_copies.h"
#include "kernels/cuda/open_cuda.h"
#include "tests/support/device/threaded_device.h"
#include "tiers/device/device_transport.h"
#include "tiers/memory/host_arena.h"

namespace terrace::bench {
namespace {

constexpr int64_t kPieceBytes = 4 * kMiB;
constexpr char kThreads[] = "threads";  // plays a device

// The raw loop's copies: queued as they come, each direction in a stream of its
// own.
class RawCopies {
 public:
  virtual ~RawCopies() = default;
  virtual const char* name() const = 0;
  virtual absl::Status Copy(bool up, void* device, std::byte* host,
                            int64_t bytes) = 0;
  virtual absl::Status Wait() = 0;
};

// CUDA's own calls, without our Device between.
class CudaCopies final : public RawCopies {
 public:
  static absl::StatusOr<std::unique_ptr<RawCopies>> Make(
      const std::string& place) {
    TERRACE_ASSIGN_OR_RETURN(const TerraceCudaCalls* const calls, LoadCuda());
    auto copies = std::unique_ptr<CudaCopies>(
        new CudaCopies(*calls, std::stoi(place.substr(place.find(':') + 1))));
    for (int i = 0; i < 2; ++i) {
      void* stream = nullptr;
      TERRACE_RETURN_IF_ERROR(
          copies->Check(calls->make_stream(copies->number_, &stream)));
      copies->streams_.push_back(stream);
    }
    return copies;
  }
  ~CudaCopies() override {
    for (void* stream : streams_) calls_.destroy_stream(number_, stream);
  }

  const char* name() const override { return "cudaMemcpyAsync"; }
  absl::Status Copy(bool up, void* device, std::byte* host,
                    int64_t bytes) override {
    return Check(calls_.copy(number_, up ? static_cast<void*>(host) : device,
                             up ? device : static_cast<void*>(host),
                             static_cast<size_t>(bytes), up ? 0 : 1,
                             streams_[up ? 0 : 1]));
  }
  absl::Status Wait() override {
    for (void* stream : streams_) {
      TERRACE_RETURN_IF_ERROR(
          Check(calls_.synchronize_stream(number_, stream)));
    }
    return absl::OkStatus();
  }

 private:
  CudaCopies(const TerraceCudaCalls& calls, int number)
      : calls_(calls), number_(number) {}

  absl::Status Check(int code) const {
    if (code == 0) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("the raw loop: ", calls_.error_name(code)));
  }

  const TerraceCudaCalls& calls_;
  const int number_;
  std::vector<void*> streams_;  // up, down
};

// Of a device that has no calls below its streams.
class StreamCopies final : public RawCopies {
 public:
  static absl::StatusOr<std::unique_ptr<RawCopies>> Make(Device& device) {
    auto copies = std::unique_ptr<StreamCopies>(new StreamCopies);
    TERRACE_ASSIGN_OR_RETURN(copies->up_, device.MakeStream());
    TERRACE_ASSIGN_OR_RETURN(copies->down_, device.MakeStream());
    return copies;
  }

  const char* name() const override { return "its streams"; }
  absl::Status Copy(bool up, void* device, std::byte* host,
                    int64_t bytes) override {
    return up ? up_->CopyToHost(host, device, bytes)
              : down_->CopyToDevice(device, host, bytes);
  }
  absl::Status Wait() override {
    const absl::Status up = up_->Wait();
    const absl::Status down = down_->Wait();
    return up.ok() ? down : up;
  }

 private:
  StreamCopies() = default;

  std::unique_ptr<Device::Stream> up_, down_;
};

absl::StatusOr<std::shared_ptr<Device>> OpenDevice(const std::string& place,
                                                   int64_t size_bytes) {
  if (place != kThreads) return OpenCuda(place);
  return std::make_shared<ThreadedDevice>(ThreadedDeviceOptions{
      .name = kThreads, .capacity_bytes = size_bytes + kMiB});
}

class Workbench {
 public:
  static absl::StatusOr<std::unique_ptr<Workbench>> Make(
      const std::string& place, int64_t size_bytes) {
    auto bench = std::unique_ptr<Workbench>(new Workbench(size_bytes));
    TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device,
                             OpenDevice(place, size_bytes));
    TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<HostArena> dram,
                             HostArena::Create({.size_bytes = size_bytes}));
    bench->dram_ = dram->bytes();
    std::memset(bench->dram_.data(), 1, static_cast<size_t>(size_bytes));
    TERRACE_ASSIGN_OR_RETURN(bench->pinned_, device->Pin(dram, dram->bytes()));
    TERRACE_ASSIGN_OR_RETURN(bench->space_,
                             DeviceSpace::Create(device, size_bytes));
    if (place == kThreads) bench->bar_.reset();
    TERRACE_ASSIGN_OR_RETURN(bench->raw_, place == kThreads
                                              ? StreamCopies::Make(*device)
                                              : CudaCopies::Make(place));
    return bench;
  }

  const char* raw_name() const { return raw_->name(); }
  std::optional<Bar> bar() const { return bar_; }

  absl::StatusOr<Sample> RunTransport(Way way) {
    Signal ended;
    DeviceTransport transport(kCopiedTier, space_, SystemClock(),
                              [&ended] { ended.Set(); },
                              {.piece_bytes = kPieceBytes});
    return RunMoves(
        transport, [&ended] { ended.Look(); }, way, dram_);
  }

  absl::StatusOr<Sample> RunLoop(Way way) {
    const Stopwatch watch;
    for (int64_t at = 0; at < size_bytes_; at += kPieceBytes) {
      TERRACE_RETURN_IF_ERROR(
          raw_->Copy(IsUp(way, at), space_->At(at), dram_.data() + at,
                     std::min(kPieceBytes, size_bytes_ - at)));
    }
    TERRACE_RETURN_IF_ERROR(raw_->Wait());
    return watch.Stop(size_bytes_);
  }

 private:
  explicit Workbench(int64_t size_bytes) : size_bytes_(size_bytes) {}

  const int64_t size_bytes_;
  std::optional<Bar> bar_ = kCopyBar;  // none of threads, which play a device
  absl::Span<std::byte> dram_;         // of the mapping that is pinned
  PinnedMapping pinned_;
  std::shared_ptr<DeviceSpace> space_;
  std::unique_ptr<RawCopies> raw_;  // goes before the device's memory
};

absl::Status AddRows(Workbench& bench, int64_t rounds, Gate& gate,
                     Section* section) {
  for (const Way way : {Way::kDown, Way::kUp, Way::kBoth}) {
    TERRACE_RETURN_IF_ERROR(AddBeside(
        NameOf(way), [&] { return bench.RunTransport(way); }, bench.raw_name(),
        [&] { return bench.RunLoop(way); }, bench.bar(), rounds, gate,
        section));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDeviceBenchmark(const Flags& flags) {
  TERRACE_ASSIGN_OR_RETURN(const int64_t size,
                           flags.number("size", 256 * kMiB));
  return MeasureDeviceCopies(flags.text("device", "cuda:0"), size, flags);
}

absl::Status MeasureDeviceCopies(const std::string& place, int64_t size,
                                 const Flags& flags) {
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 11));
  TERRACE_ASSIGN_OR_RETURN(const int64_t wait, flags.number("gate", 10));
  if (size < kMiB || size > 64 * kGiB || rounds < 1 || rounds > 1000) {
    return absl::InvalidArgumentError(
        absl::StrCat("out of range: --size ", size, " (1M to 64G), --rounds ",
                     rounds, " (1 to 1000)"));
  }
  Gate gate(
      {.enabled = wait > 0, .max_wait_seconds = static_cast<double>(wait)});
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
