#include "tests/support/device/virtual_device.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace terrace {
// Streams that wait, and which copy of each direction runs.
class VirtualDevice::Engines : public std::enable_shared_from_this<Engines> {
 public:
  struct Copy {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
    int64_t bytes = 0;
    bool to_device = false;
    DeviceFault fault;
    std::function<void()> run;  // no copy, but what OnDone was given
    bool started = false;
  };

  struct Queue {
    std::deque<Copy> copies;  // the first may run
    std::vector<absl::Status> ended;
    bool hangs = false;
  };

  Engines(VirtualClock& clock, const VirtualDeviceOptions& options)
      : clock_(clock), options_(options) {}

  void Add(std::shared_ptr<Queue> queue) {
    queues_.push_back(std::move(queue));
  }
  void Remove(const std::shared_ptr<Queue>& queue) {
    std::erase(queues_, queue);
  }

  // Starts what can run: of each stream its first, in the streams' order.
  void StartAll() {
    for (size_t i = 0; i < queues_.size(); ++i) Start(*queues_[i]);
  }

  void Release() {
    releases_ = true;
    for (const auto& queue : queues_) {
      if (std::exchange(queue->hangs, false)) End(*queue);
    }
    StartAll();
  }

  // Everything ends, and nothing that was to be called is.
  void FailAll(const absl::Status& status) {
    busy_[0] = busy_[1] = false;
    ++epoch_;
    for (const auto& queue : queues_) {
      for (const Copy& copy : queue->copies) {
        if (copy.run == nullptr) queue->ended.push_back(status);
      }
      queue->copies.clear();
      queue->hangs = false;
    }
  }

 private:
  void Start(Queue& queue) {
    while (!queue.copies.empty() && !queue.copies.front().started) {
      Copy& copy = queue.copies.front();
      if (copy.run != nullptr) {
        const std::function<void()> run = std::move(copy.run);
        queue.copies.pop_front();
        run();
        continue;
      }
      if (copy.fault.never && !releases_) {
        copy.started = queue.hangs = true;
        return;
      }
      if (busy_[copy.to_device]) return;
      copy.started = busy_[copy.to_device] = true;
      clock_.AddEvent(clock_.Now() + TimeOf(copy),
                      [self = weak_from_this(), epoch = epoch_,
                       to_device = copy.to_device, &queue] {
                        const auto engines = self.lock();
                        if (!engines || engines->epoch_ != epoch) return;
                        engines->busy_[to_device] = false;
                        engines->End(queue);
                        engines->StartAll();
                      });
      return;
    }
  }

  absl::Duration TimeOf(const Copy& copy) const {
    const double rate =
        (copy.to_device ? options_.to_device_rate : options_.to_host_rate) *
        (busy_[!copy.to_device] ? options_.duplex_factor : 1);
    if (rate == 0) return options_.copy_time;
    return options_.copy_time +
           absl::Seconds(static_cast<double>(copy.bytes) / rate);
  }

  void End(Queue& queue) {
    const Copy copy = std::move(queue.copies.front());
    queue.copies.pop_front();
    if (copy.fault.at_end.ok()) {
      std::memcpy(copy.to_device ? copy.device : copy.host,
                  copy.to_device ? copy.host : copy.device,
                  static_cast<size_t>(copy.bytes));
    }
    queue.ended.push_back(copy.fault.at_end);
  }

  VirtualClock& clock_;
  const VirtualDeviceOptions options_;
  std::vector<std::shared_ptr<Queue>> queues_;
  bool busy_[2] = {};  // to the host, to the device
  bool releases_ = false;
  int epoch_ = 0;  // FailAll ends one: its events mean nothing
};

class VirtualDevice::VirtualStream final : public Device::Stream {
 public:
  explicit VirtualStream(VirtualDevice& device)
      : clock_(device.clock_),
        script_(device.script_),
        bytes_(device.bytes_),
        engines_(device.engines_) {
    engines_->Add(queue_);
  }
  ~VirtualStream() override {
    TERRACE_CHECK(queue_->copies.empty());
    engines_->Remove(queue_);
  }

  absl::Status CopyToHost(void* target, const void* source,
                          int64_t bytes) override {
    return Begin({.host = static_cast<std::byte*>(target),
                  .device = bytes_->At(source, bytes),
                  .bytes = bytes});
  }
  absl::Status CopyToDevice(void* target, const void* source,
                            int64_t bytes) override {
    return Begin({.host = static_cast<std::byte*>(const_cast<void*>(source)),
                  .device = bytes_->At(target, bytes),
                  .bytes = bytes,
                  .to_device = true});
  }

  void Poll(std::vector<absl::Status>* ended) override {
    std::move(queue_->ended.begin(), queue_->ended.end(),
              std::back_inserter(*ended));
    queue_->ended.clear();
  }

  absl::Status OnDone(std::function<void()> run) override {
    DeviceFault fault = script_->Enter(DeviceCallKind::kOnDone);
    if (!fault.at_once.ok()) return fault.at_once;
    queue_->copies.push_back({.run = std::move(run)});
    engines_->StartAll();
    return absl::OkStatus();
  }

  // Lets time pass: not inside a step of the clock.
  absl::Status Wait() override {
    const bool done =
        clock_.RunUntil([this] { return queue_->copies.empty(); });
    TERRACE_CHECK(done);  // nothing will ever happen
    absl::Status first;
    for (const absl::Status& status : queue_->ended) first.Update(status);
    queue_->ended.clear();
    return first;
  }

 private:
  absl::Status Begin(Engines::Copy copy) {
    TERRACE_CHECK(copy.bytes > 0);
    copy.fault = script_->Enter(copy.to_device ? DeviceCallKind::kToDevice
                                               : DeviceCallKind::kToHost);
    if (!copy.fault.at_once.ok()) return copy.fault.at_once;
    bytes_->CheckPinned(copy.host, copy.bytes);
    if (copy.device == nullptr) return NoSuchAddress();
    std::memset(copy.to_device ? copy.device : copy.host, 0xFF,
                static_cast<size_t>(copy.bytes));
    queue_->copies.push_back(std::move(copy));
    engines_->StartAll();
    return absl::OkStatus();
  }

  VirtualClock& clock_;
  const std::shared_ptr<DeviceScript> script_;
  const std::shared_ptr<DeviceBytes> bytes_;
  const std::shared_ptr<Engines> engines_;
  const std::shared_ptr<Engines::Queue> queue_ =
      std::make_shared<Engines::Queue>();
};

VirtualDevice::VirtualDevice(VirtualClock& clock, VirtualDeviceOptions options)
    : clock_(clock),
      options_(std::move(options)),
      script_(std::make_shared<DeviceScript>()),
      bytes_(std::make_shared<DeviceBytes>(options_.name,
                                           options_.capacity_bytes)),
      engines_(std::make_shared<Engines>(clock, options_)) {}

VirtualDevice::~VirtualDevice() = default;

void VirtualDevice::Release() { engines_->Release(); }

void VirtualDevice::Break(const std::string& code) {
  script_->Break(options_.name, code);
  engines_->FailAll(script_->health());
}

absl::StatusOr<DeviceMemory> VirtualDevice::Allocate(int64_t bytes) {
  DeviceFault fault = script_->Enter(DeviceCallKind::kAllocate);
  if (!fault.at_once.ok()) return fault.at_once;
  return bytes_->Allocate(bytes);
}

absl::StatusOr<PinnedMemory> VirtualDevice::AllocatePinned(int64_t bytes) {
  DeviceFault fault = script_->Enter(DeviceCallKind::kRegister);
  if (!fault.at_once.ok()) return fault.at_once;
  return PlainPinnedMemory(bytes);
}

absl::StatusOr<HostRegistration> VirtualDevice::Register(
    absl::Span<std::byte> piece) {
  DeviceFault fault = script_->Enter(DeviceCallKind::kRegister);
  if (!fault.at_once.ok()) return fault.at_once;
  return bytes_->Register(piece);
}

absl::StatusOr<std::unique_ptr<Device::Stream>> VirtualDevice::MakeStream() {
  DeviceFault fault = script_->Enter(DeviceCallKind::kMakeStream);
  if (!fault.at_once.ok()) return fault.at_once;
  return std::make_unique<VirtualStream>(*this);
}

// No work but copies is queued here.
absl::Status VirtualDevice::Synchronize() {
  return script_->Enter(DeviceCallKind::kSynchronize).at_once;
}

}  // namespace terrace
