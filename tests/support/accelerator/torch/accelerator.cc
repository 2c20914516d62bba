#include "tests/support/accelerator/torch/accelerator.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "tests/support/accelerator/torch/stream_thread.h"

namespace terrace {
namespace {

constexpr size_t kDeviceAddresses = size_t{64} << 30;
constexpr size_t kPinnedAddresses = size_t{16} << 30;

std::atomic<Accelerator*> the_accelerator = nullptr;

void StopStreams() {
  if (Accelerator* const accelerator = the_accelerator)
    accelerator->streams().Stop();
}

// Before LibTorch's own ends: kernels run until then.
struct StopAtExit {
  ~StopAtExit() { StopStreams(); }
};
const StopAtExit stop_at_exit;

}  // namespace

Accelerator::Accelerator()
    : streams_(RunStreamThread), pinned_(streams_, kPinnedAddresses) {
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
    auto memory = std::make_unique<AcceleratorMemory>(
        streams_, kDeviceAddresses, kUsualLimitBytes);
    ids_.emplace_back();
    for (size_t stream = 0; stream < kStreamsOfDevice; ++stream) {
      const AcceleratorStream id =
          streams_.Add("testdev:" + std::to_string(device) + " stream " +
                       std::to_string(stream));
      memory->AddStream(id);
      ids_.back().push_back(id);
    }
    memories_.push_back(std::move(memory));
  }
}

AcceleratorMemory* Accelerator::MemoryAt(const void* address) {
  for (const auto& memory : memories_) {
    if (memory->Has(reinterpret_cast<uintptr_t>(address))) return memory.get();
  }
  return nullptr;
}

std::byte* Accelerator::Twin(const void* address) {
  AcceleratorMemory* const memory = MemoryAt(address);
  TORCH_CHECK(address == nullptr || memory != nullptr, "testdev: ", address,
              " is no address of a device");
  return memory == nullptr ? nullptr
                           : memory->Twin(reinterpret_cast<uintptr_t>(address));
}

c10::Stream Accelerator::NextStream(c10::DeviceIndex device) {
  const std::lock_guard lock(turn_mutex_);
  const size_t stream = 1 + turn_++ % (kStreamsOfDevice - 1);
  return c10::Stream(c10::Stream::UNSAFE, AcceleratorDevice(device),
                     static_cast<c10::StreamId>(stream));
}

AcceleratorStream Accelerator::Of(const c10::Stream& stream) const {
  TORCH_CHECK(stream.device_type() == c10::DeviceType::PrivateUse1 &&
                  stream.id() >= 0 &&
                  stream.id() < static_cast<int64_t>(kStreamsOfDevice),
              "testdev: ", stream, " is no stream of this accelerator");
  return ids_[static_cast<size_t>(stream.device_index())]
             [static_cast<size_t>(stream.id())];
}

AcceleratorStream Accelerator::Current(c10::DeviceIndex device) const {
  return Of(CurrentAcceleratorStream(device));
}

void Accelerator::Wait(const StreamMark& mark) {
  streams_.Wait(mark);
  pinned_.OpenWaited();
}

bool Accelerator::IsOver(const StreamMark& mark) {
  if (!streams_.IsOver(mark)) return false;
  pinned_.OpenWaited();
  return true;
}

void Accelerator::WaitForStream(AcceleratorStream stream) {
  Wait(streams_.Record(stream));
}

void Accelerator::WaitForDevice(c10::DeviceIndex device) {
  for (const AcceleratorStream id : ids_[static_cast<size_t>(device)]) {
    WaitForStream(id);
  }
}

std::vector<std::string> Accelerator::TakeReports() {
  pinned_.NoteFaults();
  std::vector<std::string> reports = streams_.reports();
  streams_.ClearReports();
  return reports;
}

void Accelerator::LockForFork() {
  for (const auto& memory : memories_) memory->LockForFork();
  pinned_.LockForFork();
  streams_.LockForFork();
}

void Accelerator::UnlockAfterFork(bool is_child) {
  streams_.UnlockAfterFork(is_child);
  pinned_.UnlockAfterFork();
  for (const auto& memory : memories_) memory->UnlockAfterFork();
}

Accelerator& TheAccelerator() {
  static Accelerator* const accelerator = [] {
    the_accelerator = new Accelerator;
    pthread_atfork([] { TheAccelerator().LockForFork(); },
                   [] { TheAccelerator().UnlockAfterFork(false); },
                   [] { TheAccelerator().UnlockAfterFork(true); });
    // What LibTorch makes later than this library ends before it: then too.
    std::atexit(StopStreams);
    return the_accelerator.load();
  }();
  return *accelerator;
}

c10::Device AcceleratorDevice(c10::DeviceIndex index) {
  return {c10::DeviceType::PrivateUse1, index};
}

}  // namespace terrace
