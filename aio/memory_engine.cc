// Devices made of memory: the same truths as a disk's, without one. Short at
// the end of the device, 0 or ENOSPC beyond it.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aio/engine.h"
#include "aio/wake_flag.h"
#include "base/check.h"

namespace terrace {
namespace {

// Zero until written; pages come with the first touch.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t size_bytes) : size_bytes_(size_bytes) {
    if (size_bytes == 0) return;
    void* const mapping =
        mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TERRACE_CHECK(mapping != MAP_FAILED);
    // Only a hint: as contiguous as the arena it is copied from.
    madvise(mapping, static_cast<size_t>(size_bytes), MADV_HUGEPAGE);
    // A child that lives would keep each page that is written from now on.
    madvise(mapping, static_cast<size_t>(size_bytes), MADV_DONTFORK);
    data_ = static_cast<std::byte*>(mapping);
  }
  ~DeviceMemory() {
    if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_bytes_));
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  const int64_t size_bytes_;
  std::byte* data_ = nullptr;
};

class MemoryEngine final : public IoEngine {
 public:
  MemoryEngine(int devices, int64_t bytes, Clock& clock)
      : bytes_(bytes), clock_(clock) {
    TERRACE_CHECK(devices >= 0 && bytes >= 0);
    for (int i = 0; i < devices; ++i) {
      devices_.push_back(std::make_unique<DeviceMemory>(bytes));
    }
  }

  absl::StatusOr<int> AddFile(int fd) override {
    if (fd < 0 || fd >= static_cast<int>(devices_.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("memory device ", fd, " of ", devices_.size()));
    }
    files_.push_back(fd);
    return static_cast<int>(files_.size()) - 1;
  }
  void RegisterArena(absl::Span<std::byte> /*arena*/) override {}

  int Submit(absl::Span<const IoRequest> requests) override {
    const int taken = static_cast<int>(
        std::min(requests.size(), kMaxPending - pending_.size()));
    pending_.insert(pending_.end(), requests.begin(), requests.begin() + taken);
    return taken;
  }

  int Poll(absl::Span<IoResult> results) override {
    int n = 0;
    for (; n < static_cast<int>(results.size()) && !pending_.empty(); ++n) {
      results[n] = {pending_.front().tag, Move(pending_.front())};
      pending_.pop_front();
    }
    return n;
  }

  void Wait(absl::Time deadline) override {
    wake_.Wait(!pending_.empty(), clock_, deadline);
  }
  void Wake() override { wake_.Wake(); }

  absl::Time NextEvent() const override {
    return pending_.empty() ? absl::InfiniteFuture() : clock_.Now();
  }

  EngineInfo info() const override {
    return {"memory", absl::StrCat(devices_.size(), " x ", bytes_, " bytes")};
  }

 private:
  static constexpr size_t kMaxPending = 1024;

  int64_t Move(const IoRequest& request) {
    if (request.file < 0 || request.file >= static_cast<int>(files_.size())) {
      return -EBADF;
    }
    if (request.offset < 0 || request.size_bytes < 0) return -EINVAL;
    const bool is_read = request.direction == IoDirection::kRead;
    const int64_t size_bytes =
        std::min(request.size_bytes, bytes_ - request.offset);
    if (size_bytes <= 0) return is_read ? 0 : -ENOSPC;
    std::byte* const device =
        devices_[files_[request.file]]->data() + request.offset;
    if (is_read) {
      std::memcpy(request.data, device, static_cast<size_t>(size_bytes));
    } else {
      std::memcpy(device, request.data, static_cast<size_t>(size_bytes));
    }
    return size_bytes;
  }

  const int64_t bytes_;  // of each device
  Clock& clock_;
  std::vector<std::unique_ptr<DeviceMemory>> devices_;
  std::vector<int> files_;  // the device of each
  std::deque<IoRequest> pending_;
  WakeFlag wake_;
};

}  // namespace

std::unique_ptr<IoEngine> MakeMemoryEngine(int devices, int64_t bytes,
                                           Clock& clock) {
  return std::make_unique<MemoryEngine>(devices, bytes, clock);
}

}  // namespace terrace
