#include "runtime/torch/python/offload_binding.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/status_macros.h"
#include "runtime/torch/python/place/state_runtime.h"
#include "runtime/torch/tensor_check.h"

namespace terrace {
namespace {

constexpr absl::Duration kClosePatience = absl::Seconds(30);

}  // namespace

OffloadBinding::~OffloadBinding() {
  if (getpid() == process_) {
    leases_.clear();
    return;
  }
  // A forked child: none of the threads is here, and a lock may be held by
  // one of them for ever.
  static_cast<void>(new std::map<int64_t, Lease>(std::move(leases_)));
  static_cast<void>(new std::shared_ptr<Opened>(std::move(opened_)));
}

absl::Status OffloadBinding::CheckProcess() const {
  if (getpid() == process_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this Offload belongs to process ", process_,
                   "; a forked child cannot use it"));
}

absl::StatusOr<std::shared_ptr<OffloadBinding::Opened>> OffloadBinding::Find() {
  TERRACE_RETURN_IF_ERROR(CheckProcess());
  MutexLock lock(mutex_);
  if (opened_ != nullptr) return opened_;
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
  if (opened_ != nullptr || ended_ != nullptr) {
    return ToOutcome(absl::FailedPreconditionError("it was opened before"));
  }
  auto opened = OpenAll(tensors, names, modules, options);
  if (opened.ok()) opened_ = *std::move(opened);
  return ToOutcome(opened.status());
}

absl::StatusOr<std::shared_ptr<OffloadBinding::Opened>> OffloadBinding::OpenAll(
    const std::vector<at::Tensor>& tensors,
    const std::vector<std::string>& names,
    const std::vector<std::vector<int64_t>>& modules,
    const std::string& options) {
  TERRACE_ASSIGN_OR_RETURN(BindingOptions asked, ReadBindingOptions(options));
  auto opened = std::make_shared<Opened>();
  TERRACE_ASSIGN_OR_RETURN(opened->plan,
                           PlanOffload(tensors, names, modules, asked));
  if (opened->plan.all_in_memory) {
    asked.paths.clear();
    asked.mapped_tiers.clear();
    asked.machine_profile.clear();
  }
  TERRACE_ASSIGN_OR_RETURN(opened->runtime,
                           OpenTiers(asked, opened->plan.budget_bytes));
  TERRACE_ASSIGN_OR_RETURN(
      opened->hook, Hook::Create(*opened->runtime,
                                 {.window_bytes = opened->plan.window_bytes}));
  if (opened->plan.activation_bytes > 0) {
    opened->hook->BeginSaving(opened->plan.activation_bytes);
  }
  return opened;
}

Outcome OffloadBinding::Manage(const std::vector<at::Tensor>& tensors,
                               const std::vector<std::string>& names) {
  auto opened = Find();
  if (!opened.ok()) return ToOutcome(opened.status());
  if (names.size() != tensors.size()) {
    return ToOutcome(absl::InvalidArgumentError("a name for each parameter"));
  }
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < tensors.size(); ++i) {
    named.push_back({names[i], tensors[i]});
  }
  return ToOutcome((*opened)->hook->Manage(named));
}

int64_t OffloadBinding::Storage(const at::Tensor& tensor) {
  if (!IsOffloaded(tensor)) return 0;
  return reinterpret_cast<int64_t>(
      tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

std::tuple<Outcome, int64_t> OffloadBinding::MakeLease(const at::Tensor& tensor,
                                                       bool write) {
  auto opened = Find();
  if (!opened.ok()) return {ToOutcome(opened.status()), 0};
  auto lease = (*opened)->hook->MakeLease(
      tensor, write ? Hook::Access::kWrite : Hook::Access::kRead);
  if (!lease.ok()) return {ToOutcome(lease.status()), 0};
  MutexLock lock(mutex_);
  leases_.emplace(++last_lease_, *std::move(lease));
  return {ToOutcome(absl::OkStatus()), last_lease_};
}

void OffloadBinding::EndLease(int64_t lease) {
  if (!CheckProcess().ok()) return;
  std::map<int64_t, Lease>::node_type ended;  // without the lock: room is made
  MutexLock lock(mutex_);
  ended = leases_.extract(lease);
}

Outcome OffloadBinding::Prefetch(const std::vector<at::Tensor>& tensors) {
  auto opened = Find();
  if (opened.ok()) (*opened)->hook->Prefetch(tensors);
  return ToOutcome(opened.status());
}

std::tuple<Outcome, bool> OffloadBinding::SaveActivation(
    const at::Tensor& tensor) {
  auto opened = Find();
  if (!opened.ok()) return {ToOutcome(absl::OkStatus()), false};
  const absl::StatusOr<bool> saved = (*opened)->hook->ManageSaved(tensor);
  return {ToOutcome(saved.status()), saved.ok() && *saved};
}

void OffloadBinding::UseActivation(const at::Tensor& tensor) {
  auto opened = Find();
  if (opened.ok()) (*opened)->hook->UseSaved(tensor);
}

Outcome OffloadBinding::BeginStep() {
  auto opened = Find();
  if (opened.ok()) (*opened)->hook->BeginStep();
  return ToOutcome(opened.status());
}

Outcome OffloadBinding::Retry() {
  auto opened = Find();
  return ToOutcome(opened.ok() ? (*opened)->hook->Retry() : opened.status());
}

Outcome OffloadBinding::Error() {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  if (opened_ != nullptr) return ToOutcome(opened_->hook->error());
  return ToOutcome(ended_ == nullptr ? absl::OkStatus() : ended_->error);
}

std::tuple<Outcome, std::string> OffloadBinding::Stats() {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return {ToOutcome(status), ""};
  }
  const Outcome done = ToOutcome(absl::OkStatus());
  MutexLock lock(mutex_);
  if (opened_ == nullptr) {
    return {done, ended_ == nullptr ? "{}" : ended_->stats};
  }
  return {done, OffloadStatsAsJson(opened_->runtime->GetStats(), *opened_->hook,
                                   opened_->plan)};
}

std::tuple<bool, Outcome> OffloadBinding::Close(bool restore) {
  auto opened = Find();
  if (!opened.ok()) return {true, ToOutcome(absl::OkStatus())};
  auto ended = std::make_unique<Ended>();
  Hook& hook = *(*opened)->hook;
  ended->stats =
      OffloadStatsAsJson((*opened)->runtime->GetStats(), hook, (*opened)->plan);
  const auto what = restore ? Hook::AtClose::kRestore : Hook::AtClose::kRefuse;
  absl::Status status = hook.Close(what);
  // Of one that is closed nothing is left that could be refused.
  if (!status.ok() && !hook.Close(what).ok()) {
    return {false, ToOutcome(status)};
  }
  ended->error = hook.error();
  {
    MutexLock lock(mutex_);
    ended_ = std::move(ended);
    opened_.reset();
  }
  status.Update((*opened)->runtime->Close(absl::Now() + kClosePatience));
  return {true, ToOutcome(status)};
}

}  // namespace terrace
