#include "tests/libtorch/accelerator/racing_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

thread_local StreamId current_stream = 0;
constexpr std::byte kPoison{0xFF};

struct Event final : DeviceEvent {
  explicit Event(RacingDevice::Clock now) : clock(std::move(now)) {}
  const RacingDevice::Clock clock;
};

void Join(RacingDevice::Clock& into, const RacingDevice::Clock& other) {
  for (const auto& [stream, time] : other) {
    into[stream] = std::max(into[stream], time);
  }
}

bool IsOrdered(const RacingDevice::Clock& before,
               const RacingDevice::Clock& after) {
  for (const auto& [stream, time] : before) {
    const auto found = after.find(stream);
    if (time > (found == after.end() ? 0 : found->second)) return false;
  }
  return true;
}

const RacingDevice::Clock& ClockOf(DeviceEvent& event) {
  return static_cast<Event&>(event).clock;
}

}  // namespace

class RacingDevice::Block final : public DeviceBlock {
 public:
  Block(RacingDevice& device, Memory& memory)
      : device_(device), memory_(memory) {}
  ~Block() override { device_.Free(memory_); }
  std::byte* address() const override { return memory_.bytes.data(); }
  void RecordUse(StreamId stream) {
    const std::lock_guard allocator(device_.allocator_);
    if (stream != memory_.home) memory_.recorded.insert(stream);
  }

 private:
  RacingDevice& device_;
  Memory& memory_;
};

void RacingDevice::SetCurrent(StreamId stream) { current_stream = stream; }

void RacingDevice::BeginCapture(StreamId stream) {
  const std::lock_guard lock(mutex_);
  capturing_.insert(stream);
}

void RacingDevice::EndCapture(StreamId stream) {
  const std::lock_guard lock(mutex_);
  capturing_.erase(stream);
}

void RacingDevice::Touch(const std::byte* address, StreamId stream,
                         bool is_write) {
  const std::lock_guard lock(mutex_);
  // What is given now comes after what the CPU has waited for.
  Clock& clock = clocks_[stream];
  Join(clock, host_);
  ++clock[stream];
  const auto found = memory_.find(address);
  const int64_t generation =
      found == memory_.end() ? 0 : found->second->generation;
  for (const Access& other : accesses_[address]) {
    if (!is_write && !other.is_write && generation == other.generation) {
      continue;
    }
    if (!IsOrdered({{other.stream, other.time}}, clock)) {
      races_.push_back(absl::StrCat(
          other.is_write ? "write" : "read", " on stream ", other.stream,
          " and ", is_write ? "write" : "read", " on stream ", stream,
          generation == other.generation ? "" : " of the memory's next block"));
    }
  }
  accesses_[address].push_back(
      {stream, clock.at(stream), is_write, generation});
}

std::byte RacingDevice::Read(std::byte* address, StreamId stream) {
  Touch(address, stream, /*is_write=*/false);
  const std::lock_guard lock(mutex_);
  return *address;
}

void RacingDevice::Fill(std::byte* address, StreamId stream, std::byte value) {
  Touch(address, stream, /*is_write=*/true);
  const std::lock_guard lock(mutex_);
  std::vector<std::byte>& bytes = memory_.at(address)->bytes;
  std::fill(bytes.begin(), bytes.end(), value);
}

std::vector<std::string> RacingDevice::races() const {
  const std::lock_guard lock(mutex_);
  return races_;
}

bool RacingDevice::IsKnownDone(const std::byte* host) {
  const std::lock_guard lock(mutex_);
  for (const Access& access : accesses_[host]) {
    if (!IsOrdered({{access.stream, access.time}}, host_)) return false;
  }
  return true;
}

bool RacingDevice::IsStillWritten(const std::byte* host) {
  const std::lock_guard lock(mutex_);
  for (const Access& access : accesses_[host]) {
    if (access.is_write && !IsOrdered({{access.stream, access.time}}, host_)) {
      return true;
    }
  }
  return false;
}

absl::Status RacingDevice::MayFail(const char* call) {
  const std::lock_guard lock(mutex_);
  if (--calls_until_failure_ != 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, " failed: CUDA error 700"));
}

// A real one becomes part of the graph, or ends the capture.
void RacingDevice::Unsafe(const char* call, StreamId stream) {
  if (capturing_.contains(stream) || capturing_.contains(current_stream)) {
    races_.push_back(absl::StrCat(call, " during a capture"));
  }
}

StreamId RacingDevice::CurrentStream() { return current_stream; }

StreamId RacingDevice::CopyStream(CopyDirection direction) const {
  return direction == CopyDirection::kToDevice ? kToDevice : kToHost;
}

absl::StatusOr<std::shared_ptr<DeviceEvent>> RacingDevice::Record(
    StreamId stream) {
  const absl::Status status = MayFail("Record");
  if (!status.ok()) return status;
  const std::lock_guard lock(mutex_);
  Unsafe("Record", stream);
  Clock clock = clocks_[stream];
  Join(clock, host_);
  return std::make_shared<Event>(std::move(clock));
}

absl::Status RacingDevice::Await(StreamId stream, DeviceEvent& event) {
  const absl::Status status = MayFail("Await");
  if (!status.ok()) return status;
  const std::lock_guard lock(mutex_);
  Unsafe("Await", stream);
  Join(clocks_[stream], ClockOf(event));
  return absl::OkStatus();
}

absl::StatusOr<bool> RacingDevice::IsDone(DeviceEvent& event) {
  const std::lock_guard lock(mutex_);
  Unsafe("IsDone", current_stream);
  if (is_slow_) return IsOrdered(ClockOf(event), host_);
  Join(host_, ClockOf(event));
  return true;
}

absl::Status RacingDevice::Wait(DeviceEvent& event) {
  const absl::Status status = MayFail("Wait");
  if (!status.ok()) return status;
  const std::lock_guard lock(mutex_);
  Unsafe("Wait", current_stream);
  Join(host_, ClockOf(event));
  return absl::OkStatus();
}

absl::Status RacingDevice::WaitForAll() {
  const std::lock_guard lock(mutex_);
  for (const StreamId stream : capturing_) Unsafe("WaitForAll", stream);
  ++waits_for_all_;
  for (const auto& [stream, clock] : clocks_) Join(host_, clock);
  return absl::OkStatus();
}

bool RacingDevice::IsCapturing(StreamId stream) {
  const std::lock_guard lock(mutex_);
  return capturing_.contains(stream);
}

RacingDevice::Memory* RacingDevice::FindFree(int64_t bytes, StreamId home) {
  const std::lock_guard lock(mutex_);
  for (auto& [address, memory] : memory_) {
    if (memory->is_used || memory->home != home ||
        memory->bytes.size() != static_cast<size_t>(bytes)) {
      continue;
    }
    if (!is_slow_) Join(host_, memory->pending);  // its events are asked
    if (IsOrdered(memory->pending, host_)) return memory.get();
  }
  return nullptr;
}

absl::StatusOr<std::unique_ptr<DeviceBlock>> RacingDevice::Allocate(
    int64_t bytes, StreamId home) {
  absl::Status status = MayFail("Allocate");
  if (!status.ok()) return status;
  const std::lock_guard allocator(allocator_);
  if (on_block_ != nullptr) on_block_();
  Memory* found = FindFree(bytes, home);
  if (found == nullptr && port_ != nullptr && port_->Relieve()) {
    found = FindFree(bytes, home);
  }
  const std::lock_guard lock(mutex_);
  if (found == nullptr) {
    if (usage().reserved_bytes + bytes > limit_bytes_) {
      // Cached blocks go back to the driver, which waits for their uses.
      for (const auto& [address, memory] : memory_) {
        if (!memory->is_used) Join(host_, memory->pending);
      }
      std::erase_if(memory_, [&](auto& each) {
        if (each.second->is_used) return false;
        accesses_.erase(each.first);
        return true;
      });
    }
    if (usage().reserved_bytes + bytes > limit_bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "CUDA out of memory: ", bytes, " bytes of ", limit_bytes_));
    }
    auto memory = std::make_unique<Memory>();
    memory->bytes.resize(static_cast<size_t>(bytes));
    memory->home = home;
    found = memory.get();
    const std::byte* const address = memory->bytes.data();
    accesses_.erase(address);
    memory_[address] = std::move(memory);
  }
  found->is_used = true;
  ++found->generation;
  found->recorded.clear();
  found->pending.clear();
  return std::make_unique<Block>(*this, *found);
}

void RacingDevice::Free(Memory& memory) {
  const std::lock_guard allocator(allocator_);
  if (on_block_ != nullptr) on_block_();
  const std::lock_guard lock(mutex_);
  for (const StreamId stream : memory.recorded) {
    Join(memory.pending, clocks_[stream]);
  }
  std::fill(memory.bytes.begin(), memory.bytes.end(), kPoison);
  memory.is_used = false;
}

absl::Status RacingDevice::Copy(CopyDirection direction, std::byte* target,
                                const std::byte* source, int64_t bytes) {
  const absl::Status status = MayFail("Copy");
  if (!status.ok()) return status;
  const StreamId stream = CopyStream(direction);
  const std::lock_guard lock(mutex_);
  Unsafe("Copy", stream);
  const std::byte* const host =
      direction == CopyDirection::kToHost ? target : source;
  // Memory that is not pinned is read by the CPU, as the copy is given.
  if (direction == CopyDirection::kToDevice && IsStillWritten(host)) {
    races_.push_back("the CPU reads bytes that a copy still writes");
  }
  Touch(source, stream, /*is_write=*/false);
  Touch(target, stream, /*is_write=*/true);
  std::memcpy(target, source, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

StreamedDevice::Usage RacingDevice::usage() {
  const std::lock_guard lock(mutex_);
  Usage usage;
  usage.limit_bytes = limit_bytes_;
  for (const auto& [address, memory] : memory_) {
    const auto bytes = static_cast<int64_t>(memory->bytes.size());
    usage.reserved_bytes += bytes;
    if (memory->is_used) usage.allocated_bytes += bytes;
  }
  return usage;
}

bool RacingPlace::Install(std::unique_ptr<DeviceBlock> block) {
  if (is_gone_) return false;
  block_ = std::move(block);
  refusal_.clear();
  return true;
}

std::unique_ptr<DeviceBlock> RacingPlace::Take() {
  refusal_ = "its bytes are away";
  return std::move(block_);
}

absl::Status RacingPlace::RecordUse(StreamId stream) {
  if (block_ == nullptr) return absl::OkStatus();
  static_cast<RacingDevice::Block&>(*block_).RecordUse(stream);
  return absl::OkStatus();
}

namespace {

class Held final : public HostBytes {
 public:
  Held(RacingDevice& device, std::byte* data,
       std::shared_ptr<RacingBelow::Holds> holds)
      : device_(device), data_(data), holds_(std::move(holds)) {
    const std::lock_guard lock(holds_->mutex);
    ++holds_->held;
  }
  ~Held() override {
    const std::lock_guard lock(holds_->mutex);
    if (--holds_->held == 0 && !device_.IsKnownDone(data_)) {
      ++holds_->let_go_early;
    }
  }
  std::byte* data() const override { return data_; }

 private:
  RacingDevice& device_;
  std::byte* const data_;
  const std::shared_ptr<RacingBelow::Holds> holds_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HostBytes>> RacingBelow::Hold(
    bool /*is_written*/) {
  if (!failure_.ok()) return failure_;
  if (on_hold_ != nullptr) TERRACE_RETURN_IF_ERROR(on_hold_());
  return std::make_unique<Held>(device_, bytes_.data(), holds_);
}

}  // namespace terrace
