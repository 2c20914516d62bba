#include "runtime/torch/python/place/offload_place.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/bytes.h"
#include "runtime/base/status_macros.h"

namespace terrace {
namespace {

constexpr int64_t kUnlimited = INT64_MAX / 4;
// Of an optimizer that adds nothing to the budget: each window more is less for
// parameters, which are used three times as often.
constexpr int64_t kMostWindowBytes = int64_t{128} << 20;

int64_t GradientBytes(const ParameterSpec& spec) {
  const int64_t size = spec.dtype == DType::kFloat32 ? 4 : 2;
  return spec.count == 0 ? 0 : ResidentBytes(spec.count * size);
}

int64_t StateBytes(const ParameterSpec& spec) {
  // Of 16-bit ones a master too.
  return spec.count * (spec.dtype == DType::kFloat32 ? 8 : 12);
}

int64_t LargestGradient(absl::Span<const ParameterSpec> specs) {
  int64_t largest = 0;
  for (const ParameterSpec& spec : specs) {
    largest = std::max(largest, GradientBytes(spec));
  }
  return largest;
}

// Of so many bytes for gradients and state, the state's.
int64_t StatePart(int64_t bytes, absl::Span<const ParameterSpec> specs) {
  double state = 0, all = 0;
  for (const ParameterSpec& spec : specs) {
    state += static_cast<double>(StateBytes(spec));
    all += static_cast<double>(StateBytes(spec) + GradientBytes(spec));
  }
  return all == 0
             ? 0
             : static_cast<int64_t>(static_cast<double>(bytes) * state / all);
}

}  // namespace

absl::StatusOr<std::shared_ptr<OffloadPlace>> OffloadPlace::Open(
    const std::vector<at::Tensor>& tensors,
    const std::vector<std::string>& names,
    const std::vector<std::vector<int64_t>>& modules,
    const PlaceOptions& asked) {
  std::shared_ptr<OffloadPlace> place(new OffloadPlace);
  TERRACE_ASSIGN_OR_RETURN(place->home_,
                           OpenOffloadHome(tensors, names, modules, asked));
  MutexLock lock(place->mutex_);
  place->window_bytes_ = place->plan().window_bytes;
  return place;
}

int64_t OffloadPlace::window_bytes() const {
  MutexLock lock(mutex_);
  return window_bytes_;
}

int64_t OffloadPlace::added_bytes() const {
  MutexLock lock(mutex_);
  return added_bytes_;
}

int64_t OffloadPlace::budget_bytes() const {
  MutexLock lock(mutex_);
  return plan().budget_bytes + added_bytes_;
}

int64_t OffloadPlace::GrowthFor(absl::Span<const ParameterSpec> specs) const {
  if (plan().share == 0) return 0;  // all that the budget has is the Runtime's
  double bytes = 0;
  for (const ParameterSpec& spec : specs) {
    bytes += static_cast<double>(GradientBytes(spec) + StateBytes(spec));
  }
  return static_cast<int64_t>(std::ceil(plan().share * bytes));
}

absl::StatusOr<OffloadPlace::Share> OffloadPlace::Join(
    absl::Span<const ParameterSpec> specs, OptimizerOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(
      const OptimizerPlan least,
      OffloadedOptimizer::Plan(specs, options, kUnlimited));
  Share share;
  share.largest_bytes = LargestGradient(specs);
  MutexLock lock(mutex_);
  if (plan().share > 0) {
    share.bytes = std::max(GrowthFor(specs),
                           least.minimum_budget_bytes + share.largest_bytes);
  } else {
    // The rest of the budget, once.
    share.bytes = std::max<int64_t>(0, plan().growth_bytes - joined_bytes_);
    share.bytes = std::min(share.bytes, plan().training_bytes);
  }
  // Of what it adds the state's part; it stays nowhere else.
  const int64_t of = share.bytes > 0
                         ? StatePart(share.bytes, specs)
                         : std::min(plan().budget_bytes / 8, kMostWindowBytes);
  share.window_bytes = std::max(least.minimum_budget_bytes, of);
  const int64_t largest_before = largest_bytes_;
  joined_bytes_ += share.bytes;
  joined_windows_ += share.window_bytes;
  largest_bytes_ = std::max(largest_bytes_, share.largest_bytes);
  absl::Status status = Arrange();
  if (!status.ok() && share.window_bytes > least.minimum_budget_bytes) {
    joined_windows_ -= share.window_bytes - least.minimum_budget_bytes;
    share.window_bytes = least.minimum_budget_bytes;
    status = Arrange();
  }
  if (!status.ok()) {
    joined_bytes_ -= share.bytes;
    joined_windows_ -= share.window_bytes;
    largest_bytes_ = largest_before;
    Arrange().IgnoreError();  // as it was
    return status;
  }
  options.name = absl::StrCat("optimizer", ++number_);
  options.window_bytes = std::max<int64_t>(1, share.window_bytes);
  hook().EvictAll();  // its window is one part
  return share;
}

absl::Status OffloadPlace::CheckLeast(int64_t total_bytes) const {
  // A parameter, its gradient, and room for one of them in any part.
  const int64_t operations = plan().minimum_bytes + largest_bytes_;
  if (total_bytes - joined_windows_ >= operations) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "a budget of ", total_bytes, " bytes is below the minimum of ",
      operations + joined_windows_,
      " with an optimizer: the operations of one ",
      "module and their gradients take ", operations, ", '", plan().largest,
      "' most of them, and the optimizer's window ", joined_windows_));
}

absl::Status OffloadPlace::Arrange() {
  const int64_t wanted = plan().budget_bytes + joined_bytes_;
  int64_t total = runtime().GetStats().host_budget_bytes;
  TERRACE_RETURN_IF_ERROR(CheckLeast(std::max(total, wanted)));
  // Of a budget the whole blocks are used.
  const int64_t more = RoundDown(wanted, kBlockBytes) - total;
  if (more > 0) {
    TERRACE_RETURN_IF_ERROR(runtime().GrowMemory(more));
    total += more;
  }
  added_bytes_ = std::max(added_bytes_, joined_bytes_);
  const int64_t rest = total - joined_windows_;
  window_bytes_ = std::min(rest, OffloadWindow(plan(), rest));
  return hook().Resize(window_bytes_, rest);
}

absl::Status OffloadPlace::Extend(Share& share,
                                  absl::Span<const ParameterSpec> added) {
  const int64_t more = GrowthFor(added);
  MutexLock lock(mutex_);
  const int64_t largest_before = largest_bytes_;
  joined_bytes_ += more;
  largest_bytes_ = std::max(largest_bytes_, LargestGradient(added));
  absl::Status status = Arrange();
  if (status.ok()) {
    share.bytes += more;
  } else {
    joined_bytes_ -= more;
    largest_bytes_ = largest_before;
  }
  return status;
}

void OffloadPlace::Leave(const Share& share) {
  MutexLock lock(mutex_);
  joined_bytes_ -= share.bytes;
  joined_windows_ -= share.window_bytes;
  // A hook that is closed needs no window.
  Arrange().IgnoreError();
}

}  // namespace terrace
