#include "terrace/torch/offload.h"

#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/threads/lock_order.h"
#include "libtorch/offload/activations/activations.h"
#include "libtorch/offload/activations/saving_scope.h"
#include "libtorch/offload/joined_optimizers.h"
#include "libtorch/offload/model_activations.h"
#include "libtorch/offload/module_tensors.h"
#include "libtorch/offload/offload_options.h"
#include "libtorch/offload/offload_place.h"
#include "libtorch/offload/weights/stored_weights.h"

namespace terrace {
namespace {

constexpr absl::Duration kClosePatience = absl::Seconds(30);

void LeaveBehind(std::shared_ptr<OffloadPlace> place) {
  static_cast<void>(new std::shared_ptr<OffloadPlace>(std::move(place)));
}

class OffloadedModel final : public Offload {
 public:
  OffloadedModel(std::shared_ptr<OffloadPlace> place,
                 std::shared_ptr<Activations> activations)
      : activations_(std::move(activations)), place_(std::move(place)) {}

  ~OffloadedModel() override {
    if (IsOwnProcess()) {
      const absl::Status status = Close(AtClose::kRestore);
      if (!status.ok()) {
        TORCH_WARN("terrace: the end of an Offload: ", status.message());
      }
      if (!absl::IsFailedPrecondition(status)) return;
    }
    // Leases still need the place, or this is a forked child, which has none of
    // the threads, and where one of them may hold a lock for ever.
    LeaveBehind(std::move(place_));
  }

  absl::StatusOr<Lease> MakeLease(const at::Tensor& tensor,
                                  Access access) override {
    TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<OffloadPlace> place,
                             Place());
    return place->hook().MakeLease(tensor, access);
  }

  void Prefetch(absl::Span<const at::Tensor> tensors) override {
    const auto place = Place();
    if (place.ok()) (*place)->hook().Prefetch(tensors);
  }

  ActivationScope SaveActivations(
      absl::Span<const at::Tensor> arguments) override {
    if (activations_ == nullptr || !Place().ok()) return ActivationScope();
    return ActivationScope(SavingScope::Begin(activations_, arguments));
  }

  absl::StatusOr<PlacementScope> Placement() override {
    TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<OffloadPlace> place,
                             Place());
    return place->BeginPlacement();
  }

  void BeginStep() override {
    const auto place = Place();
    if (!place.ok()) return;
    {
      OrderedLock lock(mutex_);
      ++steps_;
    }
    (*place)->hook().BeginStep();
  }

  absl::Status Retry() override {
    TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<OffloadPlace> place,
                             Place());
    return place->hook().Retry();
  }

  absl::Status Flush(absl::Time deadline) override;
  absl::Status Close(AtClose what) override;

  absl::Status error() const override {
    TERRACE_RETURN_IF_ERROR(CheckProcess());
    OrderedLock lock(mutex_);
    return ended_ == nullptr ? place_->hook().error() : ended_->error;
  }

  OffloadStats stats() const override {
    if (!IsOwnProcess()) return {};
    OrderedLock lock(mutex_);
    return ended_ == nullptr ? CurrentStats() : ended_->stats;
  }

  Runtime& runtime() override {
    const auto place = Place();
    TERRACE_CHECK(place.ok());
    return (*place)->runtime();
  }

 private:
  // The answers of an Offload that is closed.
  struct Ended {
    OffloadStats stats;
    absl::Status error;
  };

  bool IsOwnProcess() const { return process_.IsCurrent(); }
  absl::Status CheckProcess() const;
  absl::StatusOr<std::shared_ptr<OffloadPlace>> Place() override;
  OffloadStats CurrentStats() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Process process_;
  const std::shared_ptr<Activations> activations_;  // null: not offloaded
  OrderedMutex closing_{LockRank::kOffloadClose};   // one Close at a time
  mutable OrderedMutex mutex_{LockRank::kOffload};
  // Calls under way have the place too. It is null once its memory and files
  // are gone.
  std::shared_ptr<OffloadPlace> place_ ABSL_GUARDED_BY(mutex_);
  // Null until the hook is closed.
  std::unique_ptr<Ended> ended_ ABSL_GUARDED_BY(mutex_);
  int64_t steps_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::Status OffloadedModel::CheckProcess() const {
  if (IsOwnProcess()) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("this Offload belongs to process ",
                                           process_.id(),
                                           "; a forked child cannot use it"));
}

absl::StatusOr<std::shared_ptr<OffloadPlace>> OffloadedModel::Place() {
  TERRACE_RETURN_IF_ERROR(CheckProcess());
  OrderedLock lock(mutex_);
  if (ended_ == nullptr) return place_;
  return absl::FailedPreconditionError("this Offload is closed");
}

OffloadStats OffloadedModel::CurrentStats() const {
  const OffloadPlan& plan = place_->plan();
  OffloadStats stats;
  stats.parameter_bytes = plan.parameter_bytes;
  stats.minimum_bytes = plan.minimum_bytes;
  stats.budget_bytes = place_->budget_bytes();
  stats.joined_bytes = place_->added_bytes();
  stats.window_bytes = place_->window_bytes();
  stats.activation_budget_bytes = plan.beside_share_bytes;
  stats.activation_limit_bytes = place_->activation_limit();
  stats.steps = steps_;
  stats.hook = place_->hook().stats();
  stats.blocked = place_->hook().blocked();
  stats.runtime = place_->runtime().GetStats();
  return stats;
}

absl::Status OffloadedModel::Flush(absl::Time deadline) {
  TERRACE_RETURN_IF_ERROR(CheckProcess());
  const auto place = Place();
  return place.ok() ? (*place)->joined().Flush(deadline) : absl::OkStatus();
}

absl::Status OffloadedModel::Close(AtClose what) {
  TERRACE_RETURN_IF_ERROR(CheckProcess());
  OrderedLock closing(closing_);
  std::shared_ptr<OffloadPlace> place;
  {
    OrderedLock lock(mutex_);
    if (place_ == nullptr) return absl::OkStatus();
    place = place_;
  }
  const absl::Status updated = place->joined().Flush(absl::InfiniteFuture());
  auto ended = std::make_unique<Ended>();
  {
    OrderedLock lock(mutex_);
    if (place_ == nullptr) return updated;
    ended->stats = CurrentStats();
  }
  absl::Status status = place->hook().Close(what);
  if (absl::IsFailedPrecondition(status)) return Both(status, updated);
  ended->error = place->hook().error();
  {
    OrderedLock lock(mutex_);
    if (ended_ == nullptr) ended_ = std::move(ended);
  }
  status = Both(status, Both(updated, place->joined().Close()));
  absl::Status closed = place->runtime().Close(absl::Now() + kClosePatience);
  if (absl::IsFailedPrecondition(closed)) return Both(closed, status);
  OrderedLock lock(mutex_);
  place_.reset();  // `place` keeps it until the lock is released
  status = Both(status, closed);
  // FailedPrecondition would say that nothing has changed, but the Offload is
  // closed.
  if (!absl::IsFailedPrecondition(status)) return status;
  return Reworded(status, absl::StatusCode::kAborted, status.message());
}

std::vector<NamedTensor> NamedTensorsOf(const ModuleTensors& found) {
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < found.tensors.size(); ++i) {
    named.push_back({found.names[i], found.tensors[i]});
  }
  return named;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Offload>> Offload::Create(
    ::torch::nn::Module& model, const OffloadOptions& options) {
  const ModuleTensors found =
      options.parameters ? TensorsOf(model) : ModuleTensors();
  TERRACE_ASSIGN_OR_RETURN(const c10::Device device, DeviceOf(found));
  TERRACE_ASSIGN_OR_RETURN(
      const PlaceOptions places,
      PlacesOf(options, {.parameter_bytes = StorageBytes(found.tensors),
                         .device = device}));
  TERRACE_RETURN_IF_ERROR(PrepareActivations(model, options));
  std::optional<StoredWeights> weights;
  if (!options.checkpoint.empty()) {
    TERRACE_ASSIGN_OR_RETURN(weights,
                             StoredWeights::Open(model, options.checkpoint));
  }
  TERRACE_ASSIGN_OR_RETURN(
      std::shared_ptr<OffloadPlace> place,
      OffloadPlace::Open(found.tensors, found.names, found.modules, places,
                         {.patience = options.patience}));
  if (weights) {
    TERRACE_RETURN_IF_ERROR(
        weights->Bring(place->hook(), options.checkpoint_progress));
  } else {
    TERRACE_RETURN_IF_ERROR(place->hook().Manage(NamedTensorsOf(found)));
  }
  auto activations = MakeActivations(model, options, place);
  return std::make_unique<OffloadedModel>(std::move(place),
                                          std::move(activations));
}

}  // namespace terrace
