#include "terrace/torch/hook.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "libtorch/hook/gradients.h"
#include "libtorch/hook/life/operation_pins.h"
#include "libtorch/hook/managed_storage.h"
#include "libtorch/hook/managed_storages.h"
#include "libtorch/hook/operation_net.h"
#include "libtorch/hook/placed_tensors.h"
#include "libtorch/hook/placement/newborn_memory.h"
#include "libtorch/hook/saved_tensors.h"
#include "libtorch/hook/window/byte_window.h"
#include "terrace/machine.h"

namespace terrace {

struct Lease::Held {
  at::Tensor tensor;  // keeps the storage alive
  std::shared_ptr<ManagedStorage> storage;
  std::shared_ptr<ManagedStorages> storages;  // keeps the window alive

  ~Held() { storages->EndLease(*storage); }
};

Lease::Lease(std::unique_ptr<Held> held) : held_(std::move(held)) {}
Lease::Lease() = default;
Lease::~Lease() = default;
Lease::Lease(Lease&& other) noexcept = default;
Lease& Lease::operator=(Lease&& other) noexcept = default;

absl::Span<std::byte> Lease::data() const {
  if (held_ == nullptr) return {};
  const ManagedStorage& storage = *held_->storage;
  return {storage.data(), static_cast<size_t>(storage.size_bytes())};
}

void Lease::End() { held_.reset(); }

namespace {

// The Runtime's tier that has the device's tensors.
std::string TierOf(c10::Device device) {
  return device.is_cpu() ? "" : absl::StrCat("hbm:", device.str());
}

// How much memory there is for tensors that leave the hook. An accelerator's
// allocator says so when it is asked.
std::function<int64_t()> AvailableOf(c10::Device device) {
  if (device.is_cpu()) return AvailableMemoryBytes;
  return [] { return std::numeric_limits<int64_t>::max(); };
}

int64_t WindowOf(const HookOptions& options, int64_t budget) {
  return options.window_bytes != 0 ? options.window_bytes : budget / 4 * 3;
}

// Memory that a device copies from is not free when the operation ends that
// gave the device such a copy.
absl::Status CheckPlaces(Runtime& runtime, c10::Device device) {
  if (!device.is_cpu()) return absl::OkStatus();
  for (const TierStats& tier : runtime.GetStats().tiers) {
    if (tier.kind != TierKind::kHbm) continue;
    return absl::UnimplementedError(
        absl::StrCat("a hook for tensors in CPU memory over a runtime with '",
                     tier.name, "', which copies from that memory"));
  }
  return absl::OkStatus();
}

absl::Status CheckWindow(int64_t budget, int64_t window_bytes,
                         int64_t most_bytes) {
  if (window_bytes <= 0 || window_bytes > budget) {
    return absl::InvalidArgumentError(
        absl::StrCat("a window of ", window_bytes,
                     " bytes; it is at least 1, and the budget is ", budget));
  }
  if (most_bytes >= window_bytes && most_bytes <= budget) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "at most ", most_bytes, " bytes in use at a time; it is at least the ",
      "window of ", window_bytes, ", and the budget is ", budget));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Hook>> Hook::Create(Runtime& runtime,
                                                   const HookOptions& options) {
  std::string tier = TierOf(options.device);
  std::shared_ptr<DeviceWork> work;
  if (!options.device.is_cpu()) {
    TERRACE_ASSIGN_OR_RETURN(work, DeviceWork::Create(options.device));
    if (options.verify_clean) {
      return absl::UnimplementedError(
          "verify_clean compares bytes in CPU memory alone");
    }
  }
  TERRACE_RETURN_IF_ERROR(CheckPlaces(runtime, options.device));
  const int64_t budget = TierBudget(runtime, tier);
  if (budget == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the runtime has no tier '", tier, "'"));
  }
  const int64_t window_bytes = WindowOf(options, budget);
  TERRACE_RETURN_IF_ERROR(CheckWindow(budget, window_bytes, window_bytes));
  if (options.patience <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a patience of ", absl::FormatDuration(options.patience)));
  }
  return std::unique_ptr<Hook>(new Hook(
      runtime, options.device,
      std::make_shared<ManagedStorages>(
          runtime,
          ByteWindowOptions{.tier = std::move(tier),
                            .window_bytes = window_bytes,
                            .beyond_bytes = options.beyond_bytes,
                            .patience = options.patience,
                            .verify_clean = options.verify_clean,
                            .available_bytes = AvailableOf(options.device)},
          std::move(work))));
}

Hook::Hook(Runtime& runtime, c10::Device device,
           std::shared_ptr<ManagedStorages> storages)
    : runtime_(runtime),
      device_(device),
      storages_(std::move(storages)),
      gradients_(std::make_unique<Gradients>(
          [storages = storages_](const NamedTensor& leaf) {
            return ManageGradientOf(leaf, *storages);
          })),
      saved_(std::make_unique<SavedTensors>(storages_)),
      placed_(std::make_shared<PlacedTensors>(storages_)) {}

Hook::~Hook() {
  gradients_.reset();
  saved_->End();
  storages_->Close(/*restore=*/true).IgnoreError();
}

absl::Status Hook::Resize(int64_t window_bytes, int64_t most_bytes) {
  const int64_t budget = TierBudget(runtime_, TierOf(device_));
  TERRACE_RETURN_IF_ERROR(CheckWindow(budget, window_bytes, most_bytes));
  storages_->window().Resize(window_bytes, most_bytes);
  return absl::OkStatus();
}

bool Hook::Manages(const at::Tensor& tensor) const {
  return storages_->Find(tensor) != nullptr;
}

absl::Status Hook::Manage(absl::Span<const NamedTensor> tensors) {
  return storages_->Add(tensors);
}

absl::Status Hook::ManageGradients(absl::Span<const NamedTensor> leaves) {
  if (gradients_ == nullptr) {
    return absl::FailedPreconditionError("the hook is closed");
  }
  return gradients_->Add(leaves);
}

absl::Status Hook::ManageGradient(const NamedTensor& leaf) {
  return ManageGradientOf(leaf, *storages_);
}

absl::StatusOr<Lease> Hook::MakeLease(const at::Tensor& tensor, Access access) {
  const absl::Status unmanaged =
      absl::InvalidArgumentError("the tensor is not managed by this hook");
  if (storages_->Find(tensor) == nullptr) return unmanaged;
  TERRACE_RETURN_IF_ERROR(OperationNet::Get().Await(
      tensor.storage(), /*is_written=*/access == Access::kWrite));
  const std::shared_ptr<ManagedStorage> storage = storages_->Pin(tensor);
  if (storage == nullptr) return unmanaged;
  storages_->BeginLease(*storage);
  auto held = std::make_unique<Lease::Held>();
  held->tensor = tensor;
  held->storage = storage;
  held->storages = storages_;
  TERRACE_RETURN_IF_ERROR(
      OperationPins::BringOne(*storage, ByteWindow::Caller::kLease));
  if (access == Access::kWrite) storage->MarkWritten();
  return Lease(std::move(held));
}

void Hook::Prefetch(absl::Span<const at::Tensor> tensors) {
  std::vector<std::shared_ptr<ManagedStorage>> managed;
  for (const at::Tensor& tensor : tensors) {
    std::shared_ptr<ManagedStorage> storage = storages_->Find(tensor);
    if (storage != nullptr) managed.push_back(std::move(storage));
  }
  storages_->FetchAhead(managed);
}

void Hook::BeginSaving(int64_t most_bytes) { saved_->Begin(most_bytes); }

absl::StatusOr<bool> Hook::ManageSaved(const at::Tensor& tensor) {
  return saved_->Add(tensor);
}

void Hook::UseSaved(const at::Tensor& tensor) { saved_->Use(tensor); }

absl::StatusOr<PlacementScope> Hook::Place() {
  TERRACE_RETURN_IF_ERROR(storages_->CheckOpen());
  if (!device_.is_cpu()) {
    return absl::UnimplementedError(
        absl::StrCat("new tensors of ", device_.str(),
                     " are LibTorch's; the CPU's alone are placed"));
  }
  TERRACE_RETURN_IF_ERROR(PlacementAllocator::Install());
  if (NewbornMemory() == nullptr) {
    return absl::ResourceExhaustedError("no addresses for new tensors");
  }
  placed_->ListenToUses();
  return PlacementScope(Placing::Begin(/*arena=*/nullptr, placed_));
}

void Hook::BeginStep() {
  saved_->BeginStep();
  storages_->window().BeginStep();
}

int64_t Hook::EvictAll() {
  storages_->Sweep();
  return storages_->window().EvictAll();
}

absl::Status Hook::Retry() { return storages_->Retry(); }

absl::Status Hook::Close(AtClose what) {
  const absl::Status status = storages_->Close(what == AtClose::kRestore);
  if (!absl::IsFailedPrecondition(status)) {
    gradients_.reset();
    saved_->End();
  }
  return status;
}

HookStats Hook::stats() const {
  // One that died while a thread gave its room back is let go of here at last.
  storages_->Sweep();
  const ByteWindowStats window = storages_->window().stats();
  HookStats stats;
  stats.managed_tensors = storages_->count();
  stats.managed_bytes = storages_->size_bytes();
  stats.window_used_bytes = window.used_bytes;
  stats.window_peak_bytes = window.peaks.used_bytes;
  stats.over_budget_bytes = window.peaks.over_budget_bytes;
  stats.over_budget_operation = window.peaks.over_budget_operation;
  stats.fetches = window.fetches;
  stats.fetches_ahead = window.fetches_ahead;
  stats.fetched_bytes = window.fetched_bytes;
  stats.evictions = window.evictions;
  stats.clean_drops = window.clean_drops;
  stats.unmarked_writes = window.unmarked_writes;
  stats.failures = window.failures;
  stats.blocked = window.blocked;
  stats.blocked_on_room = window.blocked_on_room;
  stats.saved = {.tensors = window.numbered.tensors,
                 .bytes = window.numbered.bytes,
                 .peak_bytes = window.numbered.peak_bytes,
                 .evicted_bytes = window.numbered.evicted_bytes,
                 .fetched_bytes = window.numbered.fetched_bytes,
                 .blocked = window.numbered.blocked};
  stats.placed = placed_->stats();
  return stats;
}

std::vector<BlockedOn> Hook::blocked() const { return storages_->blocked(); }

absl::Status Hook::error() const {
  const absl::Status status = storages_->error();
  return status.ok() ? saved_->first_error() : status;
}

}  // namespace terrace
