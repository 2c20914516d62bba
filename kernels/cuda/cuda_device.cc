#include "kernels/cuda/cuda_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <functional>
#include <iterator>
#include <list>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace terrace {

class CudaDevice::Pieces {
 public:
  void Add(const void* address, int64_t bytes) {
    MutexLock lock(mutex_);
    ends_[static_cast<const std::byte*>(address)] = bytes;
  }
  void Remove(const void* address) {
    MutexLock lock(mutex_);
    ends_.erase(static_cast<const std::byte*>(address));
  }
  // How many of `bytes` from there on lie in one piece; all, where there is
  // none.
  int64_t InOnePiece(const void* address, int64_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(address);
    MutexLock lock(mutex_);
    const auto after = ends_.upper_bound(begin);
    if (after == ends_.begin()) return bytes;
    const auto& [piece, size] = *std::prev(after);
    return begin < piece + size ? std::min(bytes, piece + size - begin) : bytes;
  }

 private:
  Mutex mutex_;
  std::map<const std::byte*, int64_t> ends_ ABSL_GUARDED_BY(mutex_);
};

class CudaDevice::CudaStream final : public Device::Stream {
 public:
  CudaStream(CudaDevice& device, void* copies, void* calls)
      : device_(device), cuda_(device.calls_), copies_(copies), calls_(calls) {}
  // What is under way has ended, as Wait or Poll told.
  ~CudaStream() override {
    TERRACE_CHECK(under_way_.empty());
    cuda_.synchronize_stream(device_.device_, calls_);  // calls that may run
    cuda_.destroy_stream(device_.device_, calls_);
    cuda_.destroy_stream(device_.device_, copies_);
    for (void* event : events_) cuda_.destroy_event(device_.device_, event);
    cuda_.forget_error();
  }

  absl::Status CopyToHost(void* target, const void* source,
                          int64_t bytes) override {
    return Begin(target, source, bytes, /*to_device=*/false);
  }
  absl::Status CopyToDevice(void* target, const void* source,
                            int64_t bytes) override {
    return Begin(target, source, bytes, /*to_device=*/true);
  }

  void Poll(std::vector<absl::Status>* ended) override {
    while (!under_way_.empty()) {
      const int code = cuda_.query(device_.device_, under_way_.front());
      if (code == cuda_.not_ready) break;
      if (code != 0) {
        const absl::Status status = device_.Break("a copy", code);
        ended->insert(ended->end(), under_way_.size(), status);
        return Forget();
      }
      events_.push_back(under_way_.front());
      under_way_.pop_front();
      ended->push_back(absl::OkStatus());
    }
  }

  absl::Status OnDone(std::function<void()> run) override {
    TERRACE_RETURN_IF_ERROR(device_.Health());
    std::erase_if(calls_made_, [](const auto& call) {
      return call->ran.load(std::memory_order_acquire);
    });
    if (!under_way_.empty()) {
      TERRACE_RETURN_IF_ERROR(device_.Judge(
          "cudaStreamWaitEvent",
          cuda_.wait_for(device_.device_, calls_, under_way_.back())));
    }
    calls_made_.push_back(std::make_unique<HostCall>(std::move(run)));
    absl::Status status =
        device_.Judge("cudaLaunchHostFunc",
                      cuda_.call_host(device_.device_, calls_, &HostCall::Run,
                                      calls_made_.back().get()));
    if (!status.ok()) calls_made_.pop_back();
    return status;
  }

  absl::Status Wait() override {
    const bool waited = !under_way_.empty();
    Forget();
    int code = cuda_.synchronize_stream(device_.device_, copies_);
    if (code == 0) code = cuda_.synchronize_stream(device_.device_, calls_);
    if (code == 0) return absl::OkStatus();
    return waited ? device_.Break("a copy", code)
                  : device_.Judge("cudaStreamSynchronize", code);
  }

 private:
  // A call of the driver's, which is told that it ran: with a device that
  // failed it never does.
  struct HostCall {
    explicit HostCall(std::function<void()> given) : run(std::move(given)) {}
    static void Run(void* self) {
      auto* const call = static_cast<HostCall*>(self);
      call->run();
      call->ran.store(true, std::memory_order_release);
    }
    const std::function<void()> run;
    std::atomic<bool> ran = false;
  };

  absl::Status Begin(void* target, const void* source, int64_t bytes,
                     bool to_device) {
    TERRACE_CHECK(bytes > 0);
    TERRACE_RETURN_IF_ERROR(device_.Health());
    TERRACE_ASSIGN_OR_RETURN(void* const event, TakeEvent());
    absl::Status status =
        CopyPieces(static_cast<std::byte*>(target),
                   static_cast<const std::byte*>(source), bytes, to_device);
    if (status.ok()) {
      status = device_.Judge("cudaEventRecord",
                             cuda_.record(device_.device_, event, copies_));
    }
    if (status.ok()) {
      under_way_.push_back(event);
      return status;
    }
    // Nothing of it may be under way. Rare, so that it may block.
    cuda_.synchronize_stream(device_.device_, copies_);
    cuda_.forget_error();
    events_.push_back(event);
    return status;
  }

  absl::Status CopyPieces(std::byte* target, const std::byte* source,
                          int64_t bytes, bool to_device) {
    while (bytes > 0) {
      const void* const host = to_device ? source : target;
      const int64_t size = device_.pieces_->InOnePiece(host, bytes);
      TERRACE_RETURN_IF_ERROR(device_.Judge(
          "cudaMemcpyAsync",
          cuda_.copy(device_.device_, target, source, static_cast<size_t>(size),
                     to_device ? 1 : 0, copies_)));
      target += size;
      source += size;
      bytes -= size;
    }
    return absl::OkStatus();
  }

  // What is under way is told.
  void Forget() {
    events_.insert(events_.end(), under_way_.begin(), under_way_.end());
    under_way_.clear();
  }

  absl::StatusOr<void*> TakeEvent() {
    if (events_.empty()) {
      void* made = nullptr;
      TERRACE_RETURN_IF_ERROR(
          device_.Judge("cudaEventCreateWithFlags",
                        cuda_.make_event(device_.device_, &made)));
      return made;
    }
    void* const event = events_.back();
    events_.pop_back();
    return event;
  }

  CudaDevice& device_;
  const TerraceCudaCalls& cuda_;
  void* const copies_;
  void* const calls_;
  std::deque<void*> under_way_;  // an event for each copy, in their order
  std::vector<void*> events_;    // to be used again
  std::list<std::unique_ptr<HostCall>> calls_made_;
};

absl::StatusOr<std::shared_ptr<Device>> CudaDevice::Open(
    const TerraceCudaCalls& calls, int device) {
  std::string name = absl::StrCat("cuda:", device);
  const std::shared_ptr<CudaDevice> opened(
      new CudaDevice(calls, device, std::move(name)));
  int count = 0;
  if (const int code = calls.count_devices(&count); code != 0) {
    return opened->ErrorOf("no device can be used: cudaGetDeviceCount", code);
  }
  if (device < 0 || device >= count) {
    return absl::UnavailableError(
        absl::StrCat(opened->name_, ": there is no such device, there are ",
                     count, " that CUDA shows"));
  }
  TERRACE_RETURN_IF_ERROR(opened->Judge(
      "cudaStreamCreateWithFlags", calls.make_stream(device, &opened->probe_)));
  return opened;
}

CudaDevice::CudaDevice(const TerraceCudaCalls& calls, int device,
                       std::string name)
    : calls_(calls),
      device_(device),
      name_(std::move(name)),
      pieces_(std::make_shared<Pieces>()) {}

CudaDevice::~CudaDevice() {
  if (probe_ == nullptr) return;
  calls_.destroy_stream(device_, probe_);
  calls_.forget_error();
}

absl::Status CudaDevice::Health() const {
  MutexLock lock(mutex_);
  return health_;
}

absl::StatusOr<DeviceMemory> CudaDevice::Allocate(int64_t bytes) {
  TERRACE_RETURN_IF_ERROR(Health());
  void* address = nullptr;
  const int code =
      calls_.allocate(device_, &address, static_cast<size_t>(bytes));
  absl::Status status = Judge("cudaMalloc", code);
  if (status.ok()) {
    return DeviceMemory(address, [&calls = calls_, device = device_](void* at) {
      if (calls.free(device, at) != 0) calls.forget_error();
    });
  }
  size_t free = 0;
  size_t total = 0;
  if (code != calls_.no_memory || calls_.memory(device_, &free, &total) != 0) {
    return status;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(status.message(), ": ", bytes, " bytes asked for, ", free,
                   " of ", total, " are free"));
}

// Pages of our own, so that they cost what they are and no more.
absl::StatusOr<PinnedMemory> CudaDevice::AllocatePinned(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name_, ": no memory to pin, ", bytes, " bytes"));
  }
  // Else the kernel copies pinned pages for each child that is forked.
  madvise(mapped, size, MADV_DONTFORK);
  const std::shared_ptr<const void> mapping(
      mapped, [size](void* address) { munmap(address, size); });
  auto* const address = static_cast<std::byte*>(mapped);
  TERRACE_ASSIGN_OR_RETURN(PinnedMapping pinned, Pin(mapping, {address, size}));
  // A function is copied, a pin is not.
  return PinnedMemory(
      address, [held = std::make_shared<PinnedMapping>(std::move(pinned))](
                   std::byte*) mutable { held.reset(); });
}

absl::StatusOr<HostRegistration> CudaDevice::Register(
    absl::Span<std::byte> piece) {
  TERRACE_RETURN_IF_ERROR(Health());
  TERRACE_RETURN_IF_ERROR(
      Judge("cudaHostRegister",
            calls_.register_host(device_, piece.data(), piece.size())));
  pieces_->Add(piece.data(), static_cast<int64_t>(piece.size()));
  return HostRegistration(piece.data(), [&calls = calls_, device = device_,
                                         pieces = pieces_](void* address) {
    pieces->Remove(address);
    if (calls.unregister_host(device, address) != 0) calls.forget_error();
  });
}

absl::StatusOr<std::unique_ptr<Device::Stream>> CudaDevice::MakeStream() {
  TERRACE_RETURN_IF_ERROR(Health());
  void* copies = nullptr;
  TERRACE_RETURN_IF_ERROR(
      Judge("cudaStreamCreateWithFlags", calls_.make_stream(device_, &copies)));
  void* calls = nullptr;
  absl::Status status =
      Judge("cudaStreamCreateWithFlags", calls_.make_stream(device_, &calls));
  if (!status.ok()) {
    calls_.destroy_stream(device_, copies);
    return status;
  }
  return std::make_unique<CudaStream>(*this, copies, calls);
}

absl::Status CudaDevice::Synchronize() {
  TERRACE_RETURN_IF_ERROR(Health());
  return Judge("cudaDeviceSynchronize", calls_.synchronize(device_));
}

// CUDA's sticky errors come again from whatever is called.
absl::Status CudaDevice::Judge(absl::string_view call, int code) {
  if (code == 0) return absl::OkStatus();
  calls_.forget_error();
  if (probe_ != nullptr) {
    const int probed = calls_.query_stream(device_, probe_);
    if (probed != 0 && probed != calls_.not_ready) return Break(call, code);
  }
  return ErrorOf(call, code);
}

// The first one stays.
absl::Status CudaDevice::Break(absl::string_view call, int code) {
  calls_.forget_error();
  MutexLock lock(mutex_);
  if (health_.ok()) {
    health_ = absl::UnavailableError(
        absl::StrCat(ErrorOf(call, code).message(),
                     "; it fails for good, until the process ends"));
  }
  return health_;
}

absl::Status CudaDevice::ErrorOf(absl::string_view call, int code) const {
  return absl::Status(
      code == calls_.no_memory ? absl::StatusCode::kResourceExhausted
                               : absl::StatusCode::kUnavailable,
      absl::StrCat(name_, ": ", call, ": ", calls_.error_name(code), " (", code,
                   "): ", calls_.error_text(code)));
}

}  // namespace terrace
