#include "libtorch/python/offload_binding.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "libtorch/hook/collectives.h"
#include "libtorch/hook/managed_storage.h"
#include "libtorch/hook/operation_net.h"
#include "libtorch/hook/placement/waiting_tensors.h"
#include "libtorch/hook/storage_check.h"
#include "libtorch/python/binding_options.h"
#include "libtorch/python/stats_json.h"
#include "libtorch/tensor_check.h"

namespace terrace {
namespace {

constexpr absl::Duration kClosePatience = absl::Seconds(30);

// Nothing goes on with its memory, which can be another one's.
absl::Status CheckOwned(const std::string& name, const at::Tensor& tensor) {
  if (IsOffloaded(tensor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", name, "' is offloaded"));
  }
  const std::string fault =
      FaultOf(tensor, c10::kCPU, std::numeric_limits<int64_t>::max());
  if (!fault.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", name, "' ", fault));
  }
  TERRACE_RETURN_IF_ERROR(
      OperationNet::Get().Await(tensor.storage(), /*is_written=*/true));
  return Collectives::Get().CheckUnused(name, *StorageOf(tensor));
}

absl::Status Exchange(const std::string& name, const at::Tensor& tensor,
                      const at::Tensor& memory) {
  TERRACE_RETURN_IF_ERROR(CheckOwned(name, tensor));
  TERRACE_RETURN_IF_ERROR(CheckOwned(name, memory));
  c10::StorageImpl& one = *StorageOf(tensor);
  c10::StorageImpl& other = *StorageOf(memory);
  if (one.nbytes() != other.nbytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "storages of ", one.nbytes(), " and ", other.nbytes(), " bytes"));
  }
  std::swap(one._mutable_data_ptr_no_checks(),
            other._mutable_data_ptr_no_checks());
  return absl::OkStatus();
}

}  // namespace

LeaseBinding::LeaseBinding(std::shared_ptr<OffloadPlace> place, Lease lease)
    : place_(std::move(place)), lease_(std::move(lease)) {}

LeaseBinding::~LeaseBinding() { End(); }

void LeaseBinding::End() {
  if (process_.IsCurrent()) {
    lease_.End();
    place_ = nullptr;
    return;
  }
  // A forked child, as below.
  static_cast<void>(new Lease(std::move(lease_)));
  static_cast<void>(new std::shared_ptr<OffloadPlace>(std::move(place_)));
}

OffloadBinding::~OffloadBinding() {
  if (process_.IsCurrent()) return;
  // A forked child: none of the threads is here, and a lock may be held by
  // one of them for ever.
  static_cast<void>(new std::shared_ptr<OffloadPlace>(std::move(place_)));
  static_cast<void>(new std::shared_ptr<OffloadPlace>(std::move(closed_)));
}

absl::Status OffloadBinding::CheckProcess() const {
  if (process_.IsCurrent()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this Offload belongs to process ", process_.id(),
                   "; a forked child cannot use it"));
}

absl::StatusOr<std::shared_ptr<OffloadPlace>> OffloadBinding::Place() {
  TERRACE_RETURN_IF_ERROR(CheckProcess());
  MutexLock lock(mutex_);
  if (place_ != nullptr) return place_;
  return absl::FailedPreconditionError("this Offload is closed");
}

Outcome OffloadBinding::Open(const std::vector<at::Tensor>& tensors,
                             const std::vector<std::string>& names,
                             const std::vector<std::vector<int64_t>>& modules,
                             const std::string& options) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  if (place_ != nullptr || ended_ != nullptr) {
    return ToOutcome(absl::FailedPreconditionError("it was opened before"));
  }
  const auto asked = ReadBindingOptions(options);
  if (!asked.ok()) return ToOutcome(asked.status());
  auto place = OffloadPlace::Open(tensors, names, modules, *asked);
  if (place.ok()) place_ = *std::move(place);
  return ToOutcome(place.status());
}

Outcome OffloadBinding::Manage(const std::vector<at::Tensor>& tensors,
                               const std::vector<std::string>& names) {
  auto place = Place();
  if (!place.ok()) return ToOutcome(place.status());
  if (names.size() != tensors.size()) {
    return ToOutcome(absl::InvalidArgumentError("a name for each parameter"));
  }
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < tensors.size(); ++i) {
    named.push_back({names[i], tensors[i]});
  }
  return ToOutcome((*place)->hook().Manage(named));
}

Outcome OffloadBinding::ManageGradient(const at::Tensor& parameter) {
  auto place = Place();
  if (!place.ok()) return ToOutcome(place.status());
  Hook& hook = (*place)->hook();
  if (!hook.Manages(parameter)) return ToOutcome(absl::OkStatus());
  return ToOutcome(hook.ManageGradient({OffloadedName(parameter), parameter}));
}

Outcome OffloadBinding::ManageShardGradient(const std::string& name,
                                            const at::Tensor& shard) {
  auto place = Place();
  if (!place.ok()) return ToOutcome(place.status());
  return ToOutcome((*place)->hook().ManageGradient({name, shard}));
}

bool OffloadBinding::Has(const at::Tensor& tensor) {
  auto place = Place();
  return place.ok() && (*place)->hook().Manages(tensor);
}

int64_t OffloadBinding::Storage(const at::Tensor& tensor) {
  if (!IsOffloaded(tensor)) return 0;
  return reinterpret_cast<int64_t>(
      tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

std::tuple<int64_t, int64_t> OffloadBinding::Uses(const at::Tensor& tensor) {
  return {static_cast<int64_t>(tensor.storage().use_count()),
          static_cast<int64_t>(tensor.use_count())};
}

Outcome OffloadBinding::ExchangeMemory(const std::string& name,
                                       const at::Tensor& tensor,
                                       const at::Tensor& memory) {
  return ToOutcome(Exchange(name, tensor, memory));
}

std::tuple<Outcome, c10::intrusive_ptr<LeaseBinding>> OffloadBinding::MakeLease(
    const at::Tensor& tensor, bool write) {
  const auto none = c10::make_intrusive<LeaseBinding>();
  auto place = Place();
  if (!place.ok()) return {ToOutcome(place.status()), none};
  auto lease = (*place)->hook().MakeLease(
      tensor, write ? Hook::Access::kWrite : Hook::Access::kRead);
  if (!lease.ok()) return {ToOutcome(lease.status()), none};
  return {
      ToOutcome(absl::OkStatus()),
      c10::make_intrusive<LeaseBinding>(*std::move(place), *std::move(lease))};
}

std::tuple<Outcome, c10::intrusive_ptr<PlacementBinding>>
OffloadBinding::BeginPlacement() {
  auto place = Place();
  absl::StatusOr<PlacementScope> scope =
      place.ok() ? (*place)->BeginPlacement() : place.status();
  if (!scope.ok()) {
    return {ToOutcome(scope.status()), c10::make_intrusive<PlacementBinding>()};
  }
  return {ToOutcome(absl::OkStatus()),
          c10::make_intrusive<PlacementBinding>(*std::move(scope))};
}

void OffloadBinding::GiveAddress(const at::Tensor& tensor) {
  if (tensor.has_storage()) WaitingTensors::Get().NoteAddress(tensor.storage());
}

Outcome OffloadBinding::Prefetch(const std::vector<at::Tensor>& tensors) {
  auto place = Place();
  if (place.ok()) (*place)->hook().Prefetch(tensors);
  return ToOutcome(place.status());
}

std::tuple<Outcome, bool> OffloadBinding::SaveActivation(
    const at::Tensor& tensor) {
  auto place = Place();
  if (!place.ok()) return {ToOutcome(absl::OkStatus()), false};
  const absl::StatusOr<bool> saved = (*place)->hook().ManageSaved(tensor);
  return {ToOutcome(saved.status()), saved.ok() && *saved};
}

void OffloadBinding::UseActivation(const at::Tensor& tensor) {
  auto place = Place();
  if (place.ok()) (*place)->hook().UseSaved(tensor);
}

Outcome OffloadBinding::BeginStep() {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  // One that began beside a close finds its values in ordinary memory.
  const auto place = Place();
  if (place.ok()) (*place)->hook().BeginStep();
  return ToOutcome(absl::OkStatus());
}

Outcome OffloadBinding::Retry() {
  auto place = Place();
  return ToOutcome(place.ok() ? (*place)->hook().Retry() : place.status());
}

Outcome OffloadBinding::Error() {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  if (place_ != nullptr) return ToOutcome(place_->hook().error());
  return ToOutcome(ended_ == nullptr ? absl::OkStatus() : ended_->error);
}

std::tuple<Outcome, std::string, int64_t> OffloadBinding::OverBudget() {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return {ToOutcome(status), "", 0};
  }
  const Outcome done = ToOutcome(absl::OkStatus());
  MutexLock lock(mutex_);
  if (place_ == nullptr) return {done, "", 0};
  const HookStats hook = place_->hook().stats();
  return {done, hook.over_budget_operation,
          std::max<int64_t>(0, hook.over_budget_bytes)};
}

std::tuple<Outcome, std::string> OffloadBinding::Stats() {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return {ToOutcome(status), ""};
  }
  const Outcome done = ToOutcome(absl::OkStatus());
  MutexLock lock(mutex_);
  if (place_ == nullptr) {
    return {done, ended_ == nullptr ? "{}" : ended_->stats};
  }
  return {done, OffloadStatsAsJson(*place_)};
}

std::tuple<bool, Outcome> OffloadBinding::Close(bool restore) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return {true, ToOutcome(status)};
  }
  auto place = Place();
  if (!place.ok()) {
    MutexLock lock(mutex_);
    return {true,
            ToOutcome(ended_ == nullptr ? absl::OkStatus() : ended_->close)};
  }
  auto ended = std::make_unique<Ended>();
  Hook& hook = (*place)->hook();
  ended->stats = OffloadStatsAsJson(**place);
  const auto what = restore ? Hook::AtClose::kRestore : Hook::AtClose::kRefuse;
  const absl::Status status = hook.Close(what);
  if (absl::IsFailedPrecondition(status)) return {false, ToOutcome(status)};
  ended->error = hook.error();
  ended->close = status;
  MutexLock lock(mutex_);
  ended_ = std::move(ended);
  closed_ = std::move(place_);
  return {true, ToOutcome(status)};
}

bool OffloadBinding::IsClosed() {
  if (!CheckProcess().ok()) return true;
  MutexLock lock(mutex_);
  return ended_ != nullptr;
}

Outcome OffloadBinding::End() {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(absl::OkStatus());
  }
  std::shared_ptr<OffloadPlace> closed;
  {
    MutexLock lock(mutex_);
    closed = std::move(closed_);
  }
  if (closed == nullptr) return ToOutcome(absl::OkStatus());
  return ToOutcome(closed->runtime().Close(absl::Now() + kClosePatience));
}

}  // namespace terrace
