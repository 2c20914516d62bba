#include "bench/step_device.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aio/make_engine.h"
#include "base/status_macros.h"
#include "base/threads/pool_threads.h"
#include "bench/gate.h"
#include "bench/io/io_load.h"
#include "bench/raw_halves.h"
#include "bench/report/document.h"
#include "bench/rounds.h"
#include "kernels/cuda/open_cuda.h"
#include "kernels/pool_executor.h"
#include "runtime/local_runtime.h"
#include "runtime/make_core_device.h"
#include "tests/support/device/threaded_device.h"
#include "tiers/extent_header.h"

namespace terrace::bench {
namespace {

constexpr int64_t kPlace = 8 * kMiB;  // of a tensor, with its header
constexpr int64_t kPayload = kPlace - kTensorHeaderBytes;
constexpr int64_t kPiece = 4 * kMiB;
constexpr int kSlots = 4;
constexpr int kStepsPerRun = 2;

struct Setting {
  std::string place;
  std::string directory;
  int64_t tensors = 0;
  int64_t on_device = 0;  // tensors' worth of budget
  int64_t in_memory = 0;
  int rounds = 0;
  GateOptions gate;
  bool json = false;
};

absl::StatusOr<Setting> Parse(const Flags& flags) {
  Setting setting;
  setting.place = flags.text("device", "cuda:0");
  setting.directory = flags.text("path", ".");
  TERRACE_ASSIGN_OR_RETURN(const int64_t size, flags.number("size", 2 * kGiB));
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 5));
  TERRACE_ASSIGN_OR_RETURN(const int64_t gate, flags.number("gate", 10));
  if (size < 16 * kPlace || size > 256 * kGiB || rounds < 1 || rounds > 1000) {
    return absl::InvalidArgumentError(absl::StrCat("out of range: --size ",
                                                   size,
                                                   " (128M to 256G), "
                                                   "--rounds ",
                                                   rounds, " (1 to 1000)"));
  }
  setting.tensors = size / kPlace;
  // A window of each working tier, and the staging of the device's.
  setting.on_device = kSlots + setting.tensors / 5;
  setting.in_memory = kSlots + 2 * StagingSlots(kSlots) + setting.tensors / 5;
  setting.rounds = static_cast<int>(rounds);
  setting.gate.enabled = gate > 0;
  setting.gate.max_wait_seconds = static_cast<double>(gate);
  setting.json = flags.has("json");
  return setting;
}

absl::StatusOr<std::shared_ptr<Device>> OpenDevice(const Setting& setting) {
  if (setting.place != "threads") return OpenCuda(setting.place);
  const int64_t bytes = (setting.on_device + setting.tensors) * kPlace;
  return std::make_shared<ThreadedDevice>(ThreadedDeviceOptions{
      .name = "threads", .capacity_bytes = bytes + 64 * kMiB});
}

// What a tensor was filled with, from its number.
void Fill(absl::Span<std::byte> bytes, size_t number) {
  std::mt19937_64 random(number + 1);
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, 8);
  }
}

struct Traffic {
  int64_t up = 0;  // to the device
  int64_t down = 0;
  int64_t disk = 0;
};

class DeviceStep {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceStep>> Make(
      const Setting& setting, const std::shared_ptr<Device>& device) {
    auto step = std::unique_ptr<DeviceStep>(new DeviceStep);
    LocalRuntimeParts parts;
    parts.clock = &SystemClock();
    DiskFileOptions disk;
    disk.path = setting.directory;
    TERRACE_ASSIGN_OR_RETURN(parts.paths.emplace_back().file,
                             OpenDiskFile(disk));
    TERRACE_ASSIGN_OR_RETURN(
        parts.engine,
        MakeEngine(EngineKind::kAuto, {parts.paths.front().file->fd()}));
    TERRACE_ASSIGN_OR_RETURN(
        parts.arena,
        HostArena::Create({.size_bytes = setting.in_memory * kPlace}));
    TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                             MakePoolExecutor(2, {}));
    parts.pool = MakeThreadPool(std::move(executor));
    parts.eviction = MakeEvictionPolicy(EvictionKind::kNextUse);
    const TierSpec hbm = {TierKind::kHbm, "cuda:0", setting.on_device * kPlace};
    TERRACE_ASSIGN_OR_RETURN(
        parts.devices.emplace_back(),
        MakeCoreDevice(device, hbm, SystemClock(),
                       MakeEvictionPolicy(EvictionKind::kNextUse)));
    TERRACE_ASSIGN_OR_RETURN(parts.pinned,
                             device->Pin(parts.arena, parts.arena->bytes()));
    TERRACE_ASSIGN_OR_RETURN(step->runtime_,
                             LocalRuntime::Start(std::move(parts)));
    std::vector<TensorSpec> specs;
    for (int64_t i = 0; i < setting.tensors; ++i) {
      specs.push_back({.name = absl::StrCat("t", i), .size_bytes = kPayload});
    }
    TERRACE_ASSIGN_OR_RETURN(step->tensors_, step->runtime_->Register(specs));
    TERRACE_RETURN_IF_ERROR(
        step->ForEach("dram", Access::kOverwrite,
                      [](size_t i, Pin& pin) { Fill(pin.data(), i); }));
    TERRACE_ASSIGN_OR_RETURN(
        step->queue_,
        step->runtime_->OpenQueue(kPayload, kSlots, Soon(), "hbm"));
    return step;
  }

  absl::Status Run(int steps) {
    for (int i = 0; i < steps; ++i) {
      TERRACE_RETURN_IF_ERROR(queue_->BeginStep(++number_));
      TERRACE_RETURN_IF_ERROR(
          Pass(*queue_, Access::kUpdate, [](size_t, Pin&) {}));
      TERRACE_RETURN_IF_ERROR(queue_->CommitStep({.step = number_}));
    }
    return absl::OkStatus();
  }

  // DataLoss: a tensor is not what it was filled with.
  absl::Status Compare() {
    std::vector<std::byte> expected(static_cast<size_t>(kPayload));
    std::string wrong;
    TERRACE_RETURN_IF_ERROR(
        ForEach("dram", Access::kRead, [&](size_t i, Pin& pin) {
          Fill(absl::MakeSpan(expected), i);
          if (std::memcmp(pin.data().data(), expected.data(),
                          expected.size()) != 0) {
            absl::StrAppend(&wrong, " t", i);
          }
        }));
    if (wrong.empty()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("not as filled:", wrong));
  }

  Traffic traffic() const {
    const Stats stats = runtime_->GetStats();
    return {stats.links.at(0).bytes, stats.links.at(1).bytes,
            stats.bytes_read() + stats.bytes_written()};
  }

 private:
  DeviceStep() = default;
  static Time Soon() { return absl::Now() + absl::Minutes(5); }

  template <typename Use>
  absl::Status ForEach(absl::string_view tier, Access access, const Use& use) {
    TERRACE_ASSIGN_OR_RETURN(
        const auto queue, runtime_->OpenQueue(kPayload, kSlots, Soon(), tier));
    return Pass(*queue, access, use);
  }

  // As many are asked for ahead as the window has slots for.
  template <typename Use>
  absl::Status Pass(RequestQueue& queue, Access access, const Use& use) {
    size_t pushed = 0;
    for (size_t taken = 0; taken < tensors_.size(); ++taken) {
      for (; pushed < std::min(tensors_.size(), taken + kSlots); ++pushed) {
        TERRACE_RETURN_IF_ERROR(
            queue.Push({{tensors_[pushed], access}}, pushed, Soon()));
      }
      TERRACE_ASSIGN_OR_RETURN(Ready ready, queue.Next(Soon()));
      TERRACE_RETURN_IF_ERROR(ready.pins.status());
      use(static_cast<size_t>(ready.tag), ready.pins->front());
    }
    return absl::OkStatus();
  }

  std::unique_ptr<LocalRuntime> runtime_;
  std::vector<TensorId> tensors_;
  std::unique_ptr<RequestQueue> queue_;  // first to go
  int64_t number_ = 0;
};

// Raw copies of both directions at once.
class LinkLoop {
 public:
  static absl::StatusOr<std::unique_ptr<LinkLoop>> Make(Device& device) {
    auto loop = std::unique_ptr<LinkLoop>(new LinkLoop);
    TERRACE_ASSIGN_OR_RETURN(loop->memory_, device.Allocate(2 * kPiece));
    TERRACE_ASSIGN_OR_RETURN(loop->pinned_, device.AllocatePinned(2 * kPiece));
    TERRACE_ASSIGN_OR_RETURN(loop->up_, device.MakeStream());
    TERRACE_ASSIGN_OR_RETURN(loop->down_, device.MakeStream());
    return loop;
  }

  absl::Status Run(const Traffic& bytes) {
    auto* const there = static_cast<std::byte*>(memory_.get());
    for (int64_t at = 0; at < std::max(bytes.up, bytes.down); at += kPiece) {
      if (at < bytes.up) {
        TERRACE_RETURN_IF_ERROR(
            up_->CopyToDevice(there, pinned_.get(), kPiece));
      }
      if (at < bytes.down) {
        TERRACE_RETURN_IF_ERROR(
            down_->CopyToHost(pinned_.get() + kPiece, there + kPiece, kPiece));
      }
    }
    TERRACE_RETURN_IF_ERROR(up_->Wait());
    return down_->Wait();
  }

 private:
  LinkLoop() = default;

  DeviceMemory memory_;
  PinnedMemory pinned_;
  std::unique_ptr<Device::Stream> up_, down_;
};

std::vector<Contender> ContendersOf(DeviceStep& step, RawHalves& raw,
                                    LinkLoop& link, const Traffic& traffic) {
  const auto steps = [&]() -> absl::StatusOr<Sample> {
    TERRACE_RETURN_IF_ERROR(step.Run(1));
    const int64_t before = step.traffic().disk;
    const Stopwatch watch;
    TERRACE_RETURN_IF_ERROR(step.Run(kStepsPerRun));
    return watch.Stop(step.traffic().disk - before);
  };
  const auto disk = [&]() -> absl::StatusOr<Sample> {
    const Stopwatch watch;
    TERRACE_ASSIGN_OR_RETURN(const int64_t moved, raw.Run());
    return watch.Stop(moved);
  };
  const auto copies = [&]() -> absl::StatusOr<Sample> {
    const Stopwatch watch;
    TERRACE_RETURN_IF_ERROR(link.Run(traffic));
    return watch.Stop(traffic.disk);
  };
  return {{"step", steps},
          {absl::StrCat(raw.name(), ", reads and writes, 4 MiB x 2"), disk},
          {"raw copies of a step, both ways", copies}};
}

Section SectionOf(const Setting& setting, const Traffic& traffic,
                  const Rounds& rounds) {
  Section section;
  section.title =
      absl::StrCat("A step over ", setting.place, ", DRAM and a disk");
  section.text = absl::StrFormat(
      "%d tensors of 8 MiB, %d MiB on the device, %d MiB in DRAM. A step moves "
      "%d MiB up, %d MiB down and %d MiB from and to the disk; rates are of "
      "the "
      "disk's bytes. All tensors were as filled at the end.",
      setting.tensors, setting.on_device * kPlace / kMiB,
      setting.in_memory * kPlace / kMiB, traffic.up / kMiB, traffic.down / kMiB,
      traffic.disk / kMiB);
  for (int i = 0; i < rounds.size(); ++i) {
    section.rates.push_back({rounds.name(i), rounds.Of(i, Figure::kRate),
                             rounds.Of(i, Figure::kCpu), ""});
  }
  for (int bound = 1; bound < rounds.size(); ++bound) {
    section.ratios.push_back({rounds.name(0), rounds.name(bound), "MiB/s",
                              rounds.Ratio(0, bound, Figure::kRate),
                              std::nullopt, "", ""});
  }
  return section;
}

}  // namespace

absl::Status RunStepOnDevice(const Flags& flags) {
  TERRACE_ASSIGN_OR_RETURN(const Setting setting, Parse(flags));
  TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device,
                           OpenDevice(setting));
  TERRACE_ASSIGN_OR_RETURN(const auto step, DeviceStep::Make(setting, device));
  TERRACE_RETURN_IF_ERROR(step->Run(2));
  const Traffic before = step->traffic();
  TERRACE_RETURN_IF_ERROR(step->Run(1));
  const Traffic after = step->traffic();
  const Traffic traffic = {after.up - before.up, after.down - before.down,
                           after.disk - before.disk};
  TERRACE_ASSIGN_OR_RETURN(
      const auto raw,
      RawHalves::Make(setting.directory, traffic.disk / 2, kSlots * kPlace));
  TERRACE_ASSIGN_OR_RETURN(const auto link, LinkLoop::Make(*device));
  Gate gate(setting.gate);
  TERRACE_ASSIGN_OR_RETURN(
      const Rounds rounds,
      Rounds::Run(ContendersOf(*step, *raw, *link, traffic), setting.rounds,
                  gate));
  TERRACE_RETURN_IF_ERROR(step->Compare());
  PrintSection(SectionOf(setting, traffic, rounds), setting.json);
  return absl::OkStatus();
}

}  // namespace terrace::bench
