#include "tests/support/device/threaded_device.h"

#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"

namespace terrace {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(1);  // at the script

// How a call fails, if it does.
absl::Status Enter(DeviceScript& script, DeviceCallKind kind) {
  return script.Enter(kind).at_once;
}

}  // namespace

class ThreadedDevice::ThreadedStream final : public Device::Stream {
 public:
  explicit ThreadedStream(const ThreadedDevice& device)
      : rate_(device.options_.rate),
        script_(device.script_),
        bytes_(device.bytes_),
        thread_([this] { Work(); }) {}
  ~ThreadedStream() override {
    {
      MutexLock lock(mutex_);
      // What OnDone was given may have told of the end just now; no copy may
      // go on.
      while (!copies_.empty() && copies_.front().run != nullptr) {
        changed_.Wait(mutex_);
      }
      TERRACE_CHECK(copies_.empty());
      over_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }

  absl::Status CopyToHost(void* target, const void* source,
                          int64_t bytes) override {
    const std::byte* const from = bytes_->At(source, bytes);
    auto* const to = static_cast<std::byte*>(target);
    bytes_->CheckPinned(to, bytes);
    return Begin(DeviceCallKind::kToHost, to, from, bytes);
  }
  absl::Status CopyToDevice(void* target, const void* source,
                            int64_t bytes) override {
    std::byte* const to = bytes_->At(target, bytes);
    const auto* const from = static_cast<const std::byte*>(source);
    bytes_->CheckPinned(from, bytes);
    return Begin(DeviceCallKind::kToDevice, to, from, bytes);
  }

  void Poll(std::vector<absl::Status>* ended) override {
    MutexLock lock(mutex_);
    std::move(ended_.begin(), ended_.end(), std::back_inserter(*ended));
    ended_.clear();
  }

  absl::Status OnDone(std::function<void()> run) override {
    absl::Status status = Enter(*script_, DeviceCallKind::kOnDone);
    if (status.ok()) Push({.run = std::move(run)});
    return status;
  }

  absl::Status Wait() override {
    MutexLock lock(mutex_);
    while (!copies_.empty()) changed_.Wait(mutex_);
    absl::Status first;
    for (const absl::Status& status : ended_) first.Update(status);
    ended_.clear();
    return first;
  }

 private:
  struct Copy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    int64_t bytes = 0;
    DeviceFault fault;
    std::function<void()> run;  // no copy, but what OnDone was given
  };

  absl::Status Begin(DeviceCallKind kind, std::byte* to, const std::byte* from,
                     int64_t bytes) {
    TERRACE_CHECK(bytes > 0);
    DeviceFault fault = script_->Enter(kind);
    if (!fault.at_once.ok()) return fault.at_once;
    if (to == nullptr || from == nullptr) return NoSuchAddress();
    Push({.to = to, .from = from, .bytes = bytes, .fault = std::move(fault)});
    return absl::OkStatus();
  }
  void Push(Copy copy) {
    MutexLock lock(mutex_);
    copies_.push_back(std::move(copy));
    changed_.SignalAll();
  }

  void Work() {
    while (Copy* const copy = Next()) {
      absl::Status status;
      if (copy->run == nullptr) {
        status = Move(*copy);
      } else if (script_->health().ok()) {
        copy->run();
      }
      MutexLock lock(mutex_);
      if (copy->run == nullptr) ended_.push_back(std::move(status));
      copies_.pop_front();
      changed_.SignalAll();
    }
  }
  // Waits for the first; null: there will be none.
  Copy* Next() {
    MutexLock lock(mutex_);
    while (copies_.empty() && !over_) changed_.Wait(mutex_);
    return copies_.empty() ? nullptr : &copies_.front();
  }

  // Without a lock: the customer must not touch the bytes meanwhile.
  absl::Status Move(const Copy& copy) {
    while (copy.fault.never && script_->releases() == 0 &&
           script_->health().ok()) {
      Sleep(kLook);
    }
    if (rate_ > 0) {
      Sleep(absl::Seconds(static_cast<double>(copy.bytes) / rate_));
    }
    if (absl::Status health = script_->health(); !health.ok()) return health;
    if (!copy.fault.at_end.ok()) return copy.fault.at_end;
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    return absl::OkStatus();
  }
  static void Sleep(absl::Duration time) {
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(time));
  }

  const double rate_;
  const std::shared_ptr<DeviceScript> script_;
  const std::shared_ptr<DeviceBytes> bytes_;
  Mutex mutex_;
  CondVar changed_;
  // The first is under way; a deque, so that it stays where it is.
  std::deque<Copy> copies_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

ThreadedDevice::ThreadedDevice(ThreadedDeviceOptions options)
    : options_(std::move(options)),
      script_(std::make_shared<DeviceScript>()),
      bytes_(std::make_shared<DeviceBytes>(options_.name,
                                           options_.capacity_bytes)) {}

absl::StatusOr<DeviceMemory> ThreadedDevice::Allocate(int64_t bytes) {
  absl::Status status = Enter(*script_, DeviceCallKind::kAllocate);
  if (!status.ok()) return status;
  return bytes_->Allocate(bytes);
}

absl::StatusOr<PinnedMemory> ThreadedDevice::AllocatePinned(int64_t bytes) {
  absl::Status status = Enter(*script_, DeviceCallKind::kRegister);
  if (!status.ok()) return status;
  return PlainPinnedMemory(bytes);
}

absl::StatusOr<HostRegistration> ThreadedDevice::Register(
    absl::Span<std::byte> piece) {
  absl::Status status = Enter(*script_, DeviceCallKind::kRegister);
  if (!status.ok()) return status;
  return bytes_->Register(piece);
}

absl::StatusOr<std::unique_ptr<Device::Stream>> ThreadedDevice::MakeStream() {
  absl::Status status = Enter(*script_, DeviceCallKind::kMakeStream);
  if (!status.ok()) return status;
  return std::make_unique<ThreadedStream>(*this);
}

absl::Status ThreadedDevice::Synchronize() {
  return Enter(*script_, DeviceCallKind::kSynchronize);
}

}  // namespace terrace
