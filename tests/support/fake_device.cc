#include "tests/support/fake_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/support/device/device_bytes.h"

namespace terrace {

class FakeDevice::FakeStream final : public Device::Stream {
 public:
  explicit FakeStream(FakeDevice& device) : device_(device) {
    MutexLock lock(device_.mutex_);
    device_.streams_.insert(&copies_);
  }
  ~FakeStream() override {
    MutexLock lock(device_.mutex_);
    if (!copies_.empty()) {
      device_.violations_.push_back(
          absl::StrCat("a stream goes with ", copies_.size(), " copies"));
    }
    device_.streams_.erase(&copies_);
  }

  absl::Status CopyToHost(void* target, const void* source,
                          int64_t bytes) override {
    return Begin(CallKind::kToHost, static_cast<std::byte*>(target), source,
                 bytes);
  }
  absl::Status CopyToDevice(void* target, const void* source,
                            int64_t bytes) override {
    auto* const host = static_cast<std::byte*>(const_cast<void*>(source));
    return Begin(CallKind::kToDevice, host, target, bytes);
  }
  absl::Status Wait() override {
    MutexLock lock(device_.mutex_);
    const absl::Status status =
        copies_.empty() ? absl::OkStatus() : EnterWait();
    if (!status.ok()) copies_.clear();
    while (!copies_.empty()) device_.RunOne(copies_);
    untold_.clear();
    return status;
  }
  void Poll(std::vector<absl::Status>* ended) override {
    MutexLock lock(device_.mutex_);
    if (untold_.empty()) return;
    const absl::Status status = EnterWait();
    if (!status.ok()) copies_.clear();
    device_.RunSome();
    for (; untold_.size() > copies_.size(); untold_.pop_front()) {
      ended->push_back(status);
    }
  }

 private:
  absl::Status Begin(CallKind kind, std::byte* host, const void* address,
                     int64_t bytes) {
    MutexLock lock(device_.mutex_);
    absl::Status status = device_.Enter(kind);
    if (!status.ok()) return status;
    const int64_t offset = device_.OffsetOf(address, bytes);
    if (offset < 0) return absl::InvalidArgumentError("no such address");
    for (const Copies* copies : device_.streams_) {
      for (const Copy& copy : *copies) {
        if (copy.host < host + bytes && host < copy.host + copy.bytes) {
          device_.violations_.push_back(
              absl::StrCat("a copy of ", bytes, " bytes meets another of ",
                           copy.bytes, " in host memory"));
        }
      }
    }
    if (kind == CallKind::kToHost) {
      std::memset(host, 0xFF, static_cast<size_t>(bytes));
    }
    copies_.push_back({host, offset, bytes, kind == CallKind::kToDevice});
    untold_.push_back(kind == CallKind::kToDevice);
    device_.RunSome();
    return absl::OkStatus();
  }
  // The call that copies under way fail by.
  absl::Status EnterWait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_.mutex_) {
    const bool to_device =
        std::find(untold_.begin(), untold_.end(), true) != untold_.end();
    return device_.Enter(CallKind::kWait, to_device);
  }

  FakeDevice& device_;
  // Copies that were not told of, done or not; whether to the device.
  std::deque<bool> untold_ ABSL_GUARDED_BY(device_.mutex_);
  Copies copies_;
};

FakeDevice::FakeDevice(std::string name, int64_t capacity_bytes, uint64_t seed)
    : name_(std::move(name)),
      addresses_(ReserveAddresses(capacity_bytes)),
      memory_(static_cast<size_t>(capacity_bytes)),
      random_(seed) {}

FakeDevice::~FakeDevice() {
  MutexLock lock(mutex_);
  TERRACE_CHECK(streams_.empty());
  munmap(addresses_, memory_.size());
}

void* FakeDevice::Take(int64_t bytes) {
  MutexLock lock(mutex_);
  std::byte* const address = addresses_ + used_;
  used_ += (bytes + 63) / 64 * 64;
  TERRACE_CHECK(used_ <= static_cast<int64_t>(memory_.size()));
  return address;
}

void FakeDevice::QueueWrite(void* address, std::vector<std::byte> bytes) {
  MutexLock lock(mutex_);
  const int64_t offset = OffsetOf(address, static_cast<int64_t>(bytes.size()));
  writes_.push_back({offset, std::move(bytes)});
}

std::vector<std::byte> FakeDevice::Read(const void* address,
                                        int64_t bytes) const {
  MutexLock lock(mutex_);
  const auto begin = memory_.begin() + OffsetOf(address, bytes);
  return {begin, begin + bytes};
}

void FakeDevice::set_fault(Fault fault) {
  MutexLock lock(mutex_);
  fault_ = std::move(fault);
}

int64_t FakeDevice::calls() const {
  MutexLock lock(mutex_);
  return calls_;
}

std::vector<std::string> FakeDevice::violations() const {
  MutexLock lock(mutex_);
  return violations_;
}

absl::StatusOr<PinnedMemory> FakeDevice::AllocatePinned(int64_t bytes) {
  MutexLock lock(mutex_);
  if (absl::Status status = Enter(CallKind::kAllocatePinned); !status.ok()) {
    return status;
  }
  return PlainPinnedMemory(bytes);
}

absl::StatusOr<std::unique_ptr<Device::Stream>> FakeDevice::MakeStream() {
  {
    MutexLock lock(mutex_);
    if (absl::Status status = Enter(CallKind::kMakeStream); !status.ok()) {
      return status;
    }
  }
  return std::make_unique<FakeStream>(*this);
}

absl::Status FakeDevice::Synchronize() {
  MutexLock lock(mutex_);
  if (absl::Status status = Enter(CallKind::kSynchronize); !status.ok()) {
    return status;
  }
  for (const Write& write : writes_) {
    if (write.bytes.empty()) continue;
    std::memcpy(memory_.data() + write.offset, write.bytes.data(),
                write.bytes.size());
  }
  writes_.clear();
  return absl::OkStatus();
}

absl::Status FakeDevice::Enter(CallKind kind, bool to_device) {
  const Call call = {calls_++, kind, to_device};
  return fault_ ? fault_(call) : absl::OkStatus();
}

int64_t FakeDevice::OffsetOf(const void* address, int64_t bytes) const {
  const int64_t offset = static_cast<const std::byte*>(address) - addresses_;
  if (offset >= 0 && offset + bytes <= used_) return offset;
  violations_.push_back(absl::StrCat("offset ", offset, ", ", bytes,
                                     " bytes, of a device that has ", used_));
  return -1;
}

// In the order of each stream, across streams in any.
void FakeDevice::RunSome() {
  for (Copies* copies : streams_) {
    while (!copies->empty() && random_() % 4 == 0) RunOne(*copies);
  }
}

void FakeDevice::RunOne(Copies& copies) {
  const Copy& copy = copies.front();
  std::byte* const here = memory_.data() + copy.offset;
  const auto bytes = static_cast<size_t>(copy.bytes);
  if (copy.to_device) {
    std::memcpy(here, copy.host, bytes);
  } else {
    std::memcpy(copy.host, here, bytes);
  }
  copies.pop_front();
}

}  // namespace terrace
