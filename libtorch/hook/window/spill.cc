#include "libtorch/hook/window/spill.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "base/bytes.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

// LibTorch aligns its own memory like this.
constexpr size_t kAlignment = 64;

}  // namespace

bool Spill::Take(WindowTensor& tensor) {
  if (!tensor.pin_.valid()) return false;  // its storage has other bytes
  const auto size = static_cast<size_t>(
      RoundUp(tensor.size_bytes(), static_cast<int64_t>(kAlignment)));
  SpilledMemory memory(
      static_cast<std::byte*>(std::aligned_alloc(kAlignment, size)));
  if (memory == nullptr) return false;
  std::memcpy(memory.get(), tensor.pin_.data().data(),
              tensor.pin_.data().size());
  if (!tensor.Install(memory.get())) return false;
  const bool is_written =
      tensor.written_.exchange(false, std::memory_order_relaxed) ||
      tensor.never_clean_;
  is_written ? tensor.pin_.Release() : tensor.pin_.ReleaseUnchanged();
  tensor.is_checked_ = false;
  tensor.spilled_ = std::move(memory);
  tensor.is_spilled_.store(true, std::memory_order_release);
  used_bytes_.fetch_add(tensor.size_bytes(), std::memory_order_relaxed);
  return true;
}

absl::Status Spill::WriteBack(WindowTensor& tensor,
                              RuntimeBytes::MakeRoom make_room) {
  if (!tensor.written_.load(std::memory_order_relaxed) &&
      !tensor.never_clean_) {
    return absl::OkStatus();
  }
  const absl::Time end = absl::Now() + bytes_.patience();
  absl::StatusOr<Pin> taken = absl::AbortedError("");
  while (absl::IsAborted(taken.status()) && absl::Now() < end) {
    TERRACE_ASSIGN_OR_RETURN(
        const std::unique_ptr<RequestQueue> queue,
        bytes_.Ask({.tensor = tensor.id_, .access = Access::kOverwrite},
                   make_room));
    taken = bytes_.Take(*queue);
  }
  TERRACE_ASSIGN_OR_RETURN(Pin pin, std::move(taken));
  std::memcpy(pin.data().data(), tensor.spilled_.get(), pin.data().size());
  pin.Release();
  tensor.written_.store(false, std::memory_order_relaxed);
  return absl::OkStatus();
}

void Spill::Drop(WindowTensor& tensor) {
  if (!tensor.is_spilled()) return;
  tensor.spilled_.reset();
  tensor.is_spilled_.store(false, std::memory_order_release);
  used_bytes_.fetch_sub(tensor.size_bytes(), std::memory_order_relaxed);
}

}  // namespace terrace
