#include "tests/libtorch/accelerator/racing_device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

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

std::byte RacingDevice::Read(const Block& block, StreamId stream) {
  const std::vector<std::byte>& bytes = block.memory_.bytes;
  Touch(bytes.data(), stream, /*is_write=*/false);
  const std::lock_guard lock(mutex_);
  return bytes.front();
}

void RacingDevice::Fill(Block& block, StreamId stream, std::byte value) {
  std::vector<std::byte>& bytes = block.memory_.bytes;
  Touch(bytes.data(), stream, /*is_write=*/true);
  const std::lock_guard lock(mutex_);
  std::fill(bytes.begin(), bytes.end(), value);
}

std::vector<std::string> RacingDevice::races() const {
  const std::lock_guard lock(mutex_);
  return races_;
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

// A real one becomes part of the graph, or ends the capture.
void RacingDevice::Unsafe(const char* call, StreamId stream) {
  if (capturing_.contains(stream) || capturing_.contains(current_stream)) {
    races_.push_back(absl::StrCat(call, " during a capture"));
  }
}

StreamId RacingDevice::CurrentStream() { return current_stream; }

absl::StatusOr<std::shared_ptr<DeviceEvent>> RacingDevice::Record(
    StreamId stream) {
  const std::lock_guard lock(mutex_);
  Unsafe("Record", stream);
  Clock clock = clocks_[stream];
  Join(clock, host_);
  return std::make_shared<Event>(std::move(clock));
}

absl::Status RacingDevice::Await(StreamId stream, DeviceEvent& event) {
  const std::lock_guard lock(mutex_);
  Unsafe("Await", stream);
  Join(clocks_[stream], ClockOf(event));
  return absl::OkStatus();
}

absl::Status RacingDevice::Wait(DeviceEvent& event) {
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

std::unique_ptr<RacingDevice::Block> RacingDevice::Allocate(int64_t bytes,
                                                            StreamId home) {
  const std::lock_guard lock(mutex_);
  Memory* found = FindFree(bytes, home);
  if (found == nullptr) {
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
  const std::lock_guard lock(mutex_);
  for (const StreamId stream : memory.recorded) {
    Join(memory.pending, clocks_[stream]);
  }
  std::fill(memory.bytes.begin(), memory.bytes.end(), kPoison);
  memory.is_used = false;
}

absl::Status RacingDevice::Block::RecordUse(StreamId stream) {
  const std::lock_guard lock(device_.mutex_);
  if (stream != memory_.home) memory_.recorded.insert(stream);
  return absl::OkStatus();
}

void RacingDevice::CopyUp(Block& target, const std::byte* source) {
  const std::lock_guard lock(mutex_);
  Unsafe("a copy", kToDevice);
  // Memory that is not pinned is read by the CPU, as the copy is given.
  if (IsStillWritten(source)) {
    races_.push_back("the CPU reads bytes that a copy still writes");
  }
  std::vector<std::byte>& bytes = target.memory_.bytes;
  Touch(source, kToDevice, /*is_write=*/false);
  Touch(bytes.data(), kToDevice, /*is_write=*/true);
  std::copy_n(source, bytes.size(), bytes.data());
}

void RacingDevice::CopyDown(std::byte* target, const Block& source) {
  const std::lock_guard lock(mutex_);
  Unsafe("a copy", kToHost);
  const std::vector<std::byte>& bytes = source.memory_.bytes;
  Touch(bytes.data(), kToHost, /*is_write=*/false);
  Touch(target, kToHost, /*is_write=*/true);
  std::copy_n(bytes.data(), bytes.size(), target);
}

}  // namespace terrace
