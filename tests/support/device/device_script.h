// What a fake device does wrong, as a test says it: any call by its number
// among those of its kind, and the device as a whole. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"

namespace terrace {

enum class DeviceCallKind : uint8_t {
  kAllocate,
  kRegister,
  kMakeStream,
  kSynchronize,
  kToHost,
  kToDevice,
  kOnDone,
};

// How one call goes wrong.
struct DeviceFault {
  absl::Status at_once;  // the call fails: nothing was begun
  absl::Status at_end;   // a copy fails: it ends with this, and moves nothing
  bool never = false;    // a copy does not end before Release
};

class DeviceScript {
 public:
  // The `number`th call of that kind from here on, from 0.
  void Fail(DeviceCallKind kind, int64_t number, DeviceFault fault) {
    MutexLock lock(mutex_);
    faults_[{kind, calls_[kind] + number}] = std::move(fault);
  }
  // All later calls, and what is under way, fail with the code, as CUDA's
  // sticky errors do.
  void Break(const std::string& device, const std::string& code) {
    MutexLock lock(mutex_);
    health_ = absl::UnavailableError(absl::StrCat(device, ": ", code));
  }
  // What never ends ends now, if it was begun.
  void Release() {
    MutexLock lock(mutex_);
    ++releases_;
  }

  // For the fakes.
  DeviceFault Enter(DeviceCallKind kind) {
    MutexLock lock(mutex_);
    const int64_t number = calls_[kind]++;
    if (!health_.ok()) return {.at_once = health_};
    const auto found = faults_.find({kind, number});
    return found == faults_.end() ? DeviceFault() : found->second;
  }
  absl::Status health() const {
    MutexLock lock(mutex_);
    return health_;
  }
  int64_t releases() const {
    MutexLock lock(mutex_);
    return releases_;
  }
  int64_t calls(DeviceCallKind kind) const {
    MutexLock lock(mutex_);
    const auto found = calls_.find(kind);
    return found == calls_.end() ? 0 : found->second;
  }

 private:
  mutable Mutex mutex_;
  std::map<DeviceCallKind, int64_t> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<DeviceCallKind, int64_t>, DeviceFault> faults_
      ABSL_GUARDED_BY(mutex_);
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  int64_t releases_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
