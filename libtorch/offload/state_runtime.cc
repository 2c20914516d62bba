#include "libtorch/offload/state_runtime.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "libtorch/offload/shared_threads.h"
#include "libtorch/offload/tier_runtime.h"
#include "terrace/machine.h"

namespace terrace {
namespace {

constexpr int64_t kUnlimitedState = std::numeric_limits<int64_t>::max() / 2;
// State that all stays in memory is not read ahead. Its slots only bound how
// many chunks are under way: two small chunks for each core.
constexpr int64_t kResidentChunkBytes = 1 << 20;
// A small budget makes chunks no smaller than this.
constexpr int64_t kLeastChunkBytes = 64 << 10;

void ForEverythingInMemory(OptimizerOptions& options) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  options.chunk_bytes = kResidentChunkBytes;
  options.window_bytes =
      WindowBytes(kResidentChunkBytes, std::clamp(2 * cores, 4, 64));
}

// The bytes between which a budget matters.
struct BudgetBounds {
  int64_t state;       // what the state itself has
  int64_t least;       // the least budget that works
  int64_t everything;  // what all chunks take in memory, staging included
  int64_t staging;     // what parameters on devices pass through
};

absl::StatusOr<BudgetBounds> BoundsOfBudget(
    absl::Span<const ParameterSpec> specs, OptimizerOptions small) {
  ForEverythingInMemory(small);
  TERRACE_ASSIGN_OR_RETURN(
      const OptimizerPlan plan,
      OffloadedOptimizer::Plan(specs, small, kUnlimitedState));
  small.chunk_bytes = kLeastChunkBytes;
  TERRACE_ASSIGN_OR_RETURN(
      const OptimizerPlan least,
      OffloadedOptimizer::Plan(specs, small, kUnlimitedState));
  // A chunk has a header on disk and none in memory.
  return BudgetBounds{
      plan.state_bytes,
      std::max(plan.minimum_budget_bytes, 3 * ResidentBytes(1)) +
          least.staging_bytes,
      plan.disk_bytes - plan.chunks * kTensorHeaderBytes + plan.staging_bytes,
      plan.staging_bytes};
}

// ResourceExhausted: parameters pass through staging, and the budget does not
// hold it beside the least that the state needs.
absl::Status CheckHoldsStaging(const std::vector<ParameterSpec>& specs,
                               OptimizerOptions small, int64_t budget) {
  small.chunk_bytes = kLeastChunkBytes;
  TERRACE_ASSIGN_OR_RETURN(
      const OptimizerPlan least,
      OffloadedOptimizer::Plan(specs, small, kUnlimitedState));
  const int64_t minimum = least.minimum_budget_bytes + least.staging_bytes;
  if (least.staging_bytes == 0 || budget >= minimum) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "optimizer '", small.name, "': a budget of ", budget,
      " bytes is below the minimum of ", minimum, " bytes: ",
      least.minimum_budget_bytes, " for state, and ", least.staging_bytes,
      " that parameters which are offloaded or on a device pass through"));
}

// The bytes of a budget that a Runtime gets beside the staging: all of them
// where no parameter is offloaded or on a device. Makes chunks smaller in
// `options` until both fit.
absl::StatusOr<int64_t> BesideStaging(const std::vector<ParameterSpec>& specs,
                                      OptimizerOptions& options,
                                      int64_t budget) {
  TERRACE_RETURN_IF_ERROR(CheckHoldsStaging(specs, options, budget));
  while (true) {
    TERRACE_ASSIGN_OR_RETURN(const OptimizerPlan plan,
                             OffloadedOptimizer::Plan(specs, options, budget));
    const int64_t rest = budget - plan.staging_bytes;
    const absl::Status fits =
        OffloadedOptimizer::Plan(specs, options, rest).status();
    if (fits.ok()) return rest;
    if (options.chunk_bytes <= kLeastChunkBytes) return fits;
    options.chunk_bytes = std::max(kLeastChunkBytes, options.chunk_bytes / 2);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateRuntime>> StateRuntime::Open(
    const std::vector<ParameterSpec>& specs, const PlaceOptions& asked,
    OptimizerOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(const BudgetBounds bounds,
                           BoundsOfBudget(specs, options));
  const int64_t budget = asked.at_least_minimum && asked.budget_bytes >= 0
                             ? std::max(asked.budget_bytes, bounds.least)
                             : asked.budget_bytes;
  const std::vector<TierSpec>& mapped = asked.mapped_tiers;
  std::unique_ptr<StateRuntime> state(new StateRuntime);
  const bool holds_all =
      budget == PlaceOptions::kEverything || budget >= bounds.everything;
  if (holds_all && asked.daemon.empty()) {
    if (!mapped.empty()) {
      TERRACE_RETURN_IF_ERROR(CheckMappedTiers(mapped, asked.unsafe_media));
    }
    ForEverythingInMemory(options);
    state->most_bytes_ =
        budget == PlaceOptions::kEverything ? kUnlimitedState : budget;
    TERRACE_RETURN_IF_ERROR(
        state->OpenInMemory(asked, bounds.everything - bounds.staging));
    return state;
  }
  // Beyond that a daemon's memory is of no use.
  int64_t of_use = budget;
  if (holds_all) {
    TERRACE_ASSIGN_OR_RETURN(
        const OptimizerPlan all,
        OffloadedOptimizer::Plan(specs, options, kUnlimitedState));
    of_use = all.disk_bytes + all.window_bytes + all.staging_bytes;
    if (budget != PlaceOptions::kEverything) of_use = std::min(of_use, budget);
  }
  // This refuses a budget below the minimum before anything is made.
  TERRACE_ASSIGN_OR_RETURN(const int64_t in_runtime,
                           BesideStaging(specs, options, of_use));
  if (asked.paths.empty() && mapped.empty() && asked.daemon.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        asked.named_tiers ? "tiers: dram has " : "memory_budget is ", budget,
        " bytes, the state is ", bounds.state, " and takes ", bounds.everything,
        ", and there is no ", asked.named_tiers ? "tier below" : "nvme_path",
        " for the rest"));
  }
  TERRACE_ASSIGN_OR_RETURN(state->runtime_, OpenTiers(asked, in_runtime));
  state->most_bytes_ = of_use;
  return state;
}

absl::StatusOr<std::unique_ptr<StateRuntime>> StateRuntime::Join(
    const std::vector<ParameterSpec>& specs, const PlaceOptions& asked,
    std::shared_ptr<OffloadPlace> place, OptimizerOptions& options) {
  if (place->plan().all_in_memory) {
    return OpenBeside(specs, asked, *place, options);
  }
  std::unique_ptr<StateRuntime> state(new StateRuntime);
  TERRACE_ASSIGN_OR_RETURN(state->share_, place->Join(specs, options));
  state->place_ = std::move(place);
  state->most_bytes_ = kUnlimitedState;
  return state;
}

absl::StatusOr<std::unique_ptr<StateRuntime>> StateRuntime::OpenBeside(
    const std::vector<ParameterSpec>& specs, const PlaceOptions& asked,
    const OffloadPlace& place, OptimizerOptions& options) {
  const std::shared_ptr<BesideBudget>& budget = place.beside();
  PlaceOptions beside = place.asked();
  beside.threads = asked.threads;
  beside.at_least_minimum = false;
  beside.budget_bytes =
      budget == nullptr ? PlaceOptions::kEverything : budget->left_bytes();
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<StateRuntime> state,
                           Open(specs, beside, options));
  if (budget == nullptr) return state;
  int64_t bytes = beside.budget_bytes;  // a Runtime of its own takes all
  if (state->memory_ != nullptr) {
    TERRACE_ASSIGN_OR_RETURN(const BudgetBounds bounds,
                             BoundsOfBudget(specs, options));
    bytes = bounds.everything;
  }
  state->beside_ = budget;
  if (state->TakeBeside(bytes)) return state;
  return absl::ResourceExhaustedError(
      absl::StrCat("the state takes ", bytes, " bytes beside the model, and ",
                   budget->left_bytes(), " are left of the budget"));
}

StateRuntime::~StateRuntime() {
  if (place_ != nullptr) place_->Leave(share_);
  if (beside_ == nullptr) return;
  runtime_.reset();
  beside_->GiveBack(taken_bytes_);
}

bool StateRuntime::TakeBeside(int64_t bytes) {
  const int64_t more = bytes - taken_bytes_;
  if (more <= 0) {
    beside_->GiveBack(-more);
  } else if (!beside_->Take(more)) {
    return false;
  }
  taken_bytes_ = bytes;
  return true;
}

int64_t StateRuntime::most_bytes() const {
  return beside_ == nullptr ? most_bytes_
                            : taken_bytes_ + beside_->left_bytes();
}

absl::Status StateRuntime::Close(Time deadline) {
  if (place_ == nullptr) return runtime_->Close(deadline);
  place_->Leave(share_);
  place_.reset();
  return absl::OkStatus();
}

absl::Status StateRuntime::OpenInMemory(const PlaceOptions& asked,
                                        int64_t state_bytes) {
  TERRACE_ASSIGN_OR_RETURN(ThreadPool shared, SharedThreads(asked.threads));
  std::unique_ptr<MemoryRuntime> memory = MemoryRuntime::Create(
      std::move(shared), NodeOf({.place = asked.memory_place}));
  memory_ = memory.get();
  runtime_ = std::move(memory);
  return state_bytes > 0 ? memory_->Reserve(state_bytes) : absl::OkStatus();
}

absl::Status StateRuntime::Extend(absl::Span<const ParameterSpec> specs,
                                  absl::Span<const ParameterSpec> added) {
  if (place_ != nullptr) {
    before_extension_ = share_;
    return place_->Extend(share_, added);
  }
  if (memory_ == nullptr) return absl::OkStatus();
  std::vector<ParameterSpec> all(specs.begin(), specs.end());
  all.insert(all.end(), added.begin(), added.end());
  TERRACE_ASSIGN_OR_RETURN(const BudgetBounds whole, BoundsOfBudget(all, {}));
  TERRACE_ASSIGN_OR_RETURN(BudgetBounds more, BoundsOfBudget(added, {}));
  const int64_t taken = memory_->GetStats().host.reserved_bytes + whole.staging;
  more.everything -= more.staging;  // whole.staging counts it already
  taken_before_extension_ = taken_bytes_;
  if (more.everything > most_bytes() - taken ||
      (beside_ != nullptr && !TakeBeside(taken + more.everything))) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all state takes ", whole.everything,
                     " bytes of memory, and ", more.everything, " more than ",
                     taken, " are beyond its budget of ", most_bytes()));
  }
  if (more.everything <= 0) return absl::OkStatus();
  const absl::Status status = memory_->Reserve(more.everything);
  if (!status.ok()) EndExtension(/*is_added=*/false);
  return status;
}

Stats StateRuntime::GetStats() const {
  Stats stats =
      place_ == nullptr ? runtime_->GetStats() : place_->runtime().GetStats();
  const int64_t most = most_bytes();
  if (most == kUnlimitedState) return stats;
  // The budget holds the staging for parameters on devices too.
  for (TierStats& tier : stats.tiers) {
    if (tier.kind == TierKind::kDram) tier.budget_bytes = most;
  }
  return stats;
}

void StateRuntime::EndExtension(bool is_added) {
  if (memory_ != nullptr) memory_->ReleaseUnused();
  if (beside_ != nullptr && memory_ != nullptr && !is_added) {
    TakeBeside(taken_before_extension_);
  }
  if (place_ != nullptr && !is_added) {
    place_->TakeBack(share_, before_extension_);
  }
}

}  // namespace terrace
