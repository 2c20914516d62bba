#include "terrace/torch/offload.h"

#include <unistd.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/check.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status_macros.h"
#include "runtime/torch/offload/module_tensors.h"
#include "runtime/torch/offload/offload_home.h"
#include "runtime/torch/offload/offload_places.h"
#include "runtime/torch/offload/weights/stored_weights.h"

namespace terrace {
namespace {

constexpr absl::Duration kClosePatience = absl::Seconds(30);

void LeaveBehind(std::shared_ptr<OffloadHome> home) {
  static_cast<void>(new std::shared_ptr<OffloadHome>(std::move(home)));
}

class OffloadedModel final : public Offload {
 public:
  explicit OffloadedModel(OffloadHome home)
      : process_(getpid()),
        home_(std::make_shared<OffloadHome>(std::move(home))) {}

  ~OffloadedModel() override {
    if (IsOwnProcess() &&
        !absl::IsFailedPrecondition(Close(AtClose::kRestore))) {
      return;
    }
    // A forked child has none of the threads, and a lock may be held by one of
    // them for ever; or leases need it.
    LeaveBehind(std::move(home_));
  }

  absl::StatusOr<Lease> MakeLease(const at::Tensor& tensor,
                                  Access access) override {
    TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<OffloadHome> home, Home());
    return home->hook->MakeLease(tensor, access);
  }

  void Prefetch(absl::Span<const at::Tensor> tensors) override {
    const auto home = Home();
    if (home.ok()) (*home)->hook->Prefetch(tensors);
  }

  void BeginStep() override {
    const auto home = Home();
    if (!home.ok()) return;
    {
      MutexLock lock(mutex_);
      ++steps_;
    }
    (*home)->hook->BeginStep();
  }

  absl::Status Retry() override {
    TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<OffloadHome> home, Home());
    return home->hook->Retry();
  }

  absl::Status Close(AtClose what) override;

  absl::Status error() const override {
    TERRACE_RETURN_IF_ERROR(CheckProcess());
    MutexLock lock(mutex_);
    return ended_ == nullptr ? home_->hook->error() : ended_->error;
  }

  OffloadStats stats() const override {
    if (!IsOwnProcess()) return {};
    MutexLock lock(mutex_);
    return ended_ == nullptr ? CurrentStats() : ended_->stats;
  }

  Runtime& runtime() override {
    const auto home = Home();
    TERRACE_CHECK(home.ok());
    return *(*home)->runtime;
  }

 private:
  // What is left to be told of one that is closed.
  struct Ended {
    OffloadStats stats;
    absl::Status error;
  };

  bool IsOwnProcess() const { return getpid() == process_; }
  absl::Status CheckProcess() const;
  // FailedPrecondition: it is closed.
  absl::StatusOr<std::shared_ptr<OffloadHome>> Home() const;
  OffloadStats CurrentStats() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const pid_t process_;
  mutable Mutex mutex_;
  // Shared with calls under way. Null: its memory and files are gone.
  std::shared_ptr<OffloadHome> home_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Ended> ended_ ABSL_GUARDED_BY(mutex_);  // the hook is closed
  int64_t steps_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::Status OffloadedModel::CheckProcess() const {
  if (IsOwnProcess()) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("this Offload belongs to process ",
                                           process_,
                                           "; a forked child cannot use it"));
}

absl::StatusOr<std::shared_ptr<OffloadHome>> OffloadedModel::Home() const {
  TERRACE_RETURN_IF_ERROR(CheckProcess());
  MutexLock lock(mutex_);
  if (ended_ == nullptr) return home_;
  return absl::FailedPreconditionError("this Offload is closed");
}

OffloadStats OffloadedModel::CurrentStats() const {
  const OffloadPlan& plan = home_->plan;
  OffloadStats stats;
  stats.parameter_bytes = plan.parameter_bytes;
  stats.minimum_bytes = plan.minimum_bytes;
  stats.budget_bytes = plan.budget_bytes;
  stats.window_bytes = plan.window_bytes;
  stats.steps = steps_;
  stats.hook = home_->hook->stats();
  stats.blocked = home_->hook->blocked();
  stats.runtime = home_->runtime->GetStats();
  return stats;
}

absl::Status OffloadedModel::Close(AtClose what) {
  TERRACE_RETURN_IF_ERROR(CheckProcess());
  std::shared_ptr<OffloadHome> home;
  auto ended = std::make_unique<Ended>();
  {
    MutexLock lock(mutex_);
    if (home_ == nullptr) return absl::OkStatus();
    home = home_;
    ended->stats = CurrentStats();
  }
  absl::Status status = home->hook->Close(what);
  if (absl::IsFailedPrecondition(status)) return status;
  ended->error = home->hook->error();
  {
    MutexLock lock(mutex_);
    if (ended_ == nullptr) ended_ = std::move(ended);
  }
  absl::Status closed = home->runtime->Close(absl::Now() + kClosePatience);
  if (absl::IsFailedPrecondition(closed)) return closed;
  status.Update(closed);
  MutexLock lock(mutex_);
  home_.reset();  // not the last one here
  return status;
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
  const ModuleTensors found = TensorsOf(model);
  std::optional<StoredWeights> weights;
  if (!options.checkpoint.empty()) {
    TERRACE_ASSIGN_OR_RETURN(weights,
                             StoredWeights::Open(model, options.checkpoint));
  }
  TERRACE_ASSIGN_OR_RETURN(const PlaceOptions places,
                           PlacesOf(options, StorageBytes(found.tensors)));
  TERRACE_ASSIGN_OR_RETURN(
      OffloadHome home,
      OpenOffloadHome(found.tensors, found.names, found.modules, places,
                      {.patience = options.patience}));
  if (weights) {
    TERRACE_RETURN_IF_ERROR(
        weights->Bring(*home.hook, options.checkpoint_progress));
  } else {
    TERRACE_RETURN_IF_ERROR(home.hook->Manage(NamedTensorsOf(found)));
  }
  return std::make_unique<OffloadedModel>(std::move(home));
}

}  // namespace terrace
