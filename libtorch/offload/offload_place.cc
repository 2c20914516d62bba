#include "libtorch/offload/offload_place.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr int64_t kUnlimitedPlan = INT64_MAX / 4;
// No optimizer gets a larger window: the window takes room of parameters, which
// are used three times as often, and of state that could stay.
constexpr int64_t kMostWindowBytes = int64_t{128} << 20;
// An optimizer that adds a share of its bytes gets no smaller window, unless
// the state's part of that share is smaller.
constexpr int64_t kLeastShareWindowBytes = int64_t{32} << 20;
// What an optimizer of one or two chunks needs once it has more: one that is
// read, one that is updated and one that is written, no smaller than this.
constexpr int kLaterSlots = 3;
constexpr int64_t kLaterChunkBytes = 64 << 10;

// Returns the window of an optimizer whose state has a part of so many bytes in
// memory. An eighth of the part is for motion, or what keeps a disk busy: the
// rest of the state is beside the window, in the order in which all customers'
// tensors leave.
int64_t SharesWindow(int64_t state_part) {
  return std::min(state_part, std::clamp(state_part / 8, kLeastShareWindowBytes,
                                         kMostWindowBytes));
}

int64_t GradientBytes(const ParameterSpec& spec) {
  const int64_t size = spec.dtype == DType::kFloat32 ? 4 : 2;
  return spec.count == 0 ? 0 : ResidentBytes(spec.count * size);
}

int64_t StateBytes(const ParameterSpec& spec) {
  // A 16-bit parameter has a master beside its moments.
  return spec.count * (spec.dtype == DType::kFloat32 ? 8 : 12);
}

int64_t LargestGradient(absl::Span<const ParameterSpec> specs) {
  int64_t largest = 0;
  for (const ParameterSpec& spec : specs) {
    largest = std::max(largest, GradientBytes(spec));
  }
  return largest;
}

// The bytes that gradients and state take.
int64_t TrainingBytes(absl::Span<const ParameterSpec> specs) {
  int64_t bytes = 0;
  for (const ParameterSpec& spec : specs) {
    bytes += StateBytes(spec) + GradientBytes(spec);
  }
  return bytes;
}

// The most bytes that are of use to an optimizer of this plan: with all of them
// nothing of it is ever below.
int64_t UsefulBytes(absl::Span<const ParameterSpec> specs,
                    const OptimizerPlan& plan) {
  int64_t bytes = plan.disk_bytes + plan.window_bytes;
  for (const ParameterSpec& spec : specs) bytes += GradientBytes(spec);
  return bytes;
}

// The part of `bytes` that state gets where these parameters' state and
// gradients share them.
int64_t StatePart(int64_t bytes, absl::Span<const ParameterSpec> specs) {
  double state = 0;
  for (const ParameterSpec& spec : specs) {
    state += static_cast<double>(StateBytes(spec));
  }
  const auto all = static_cast<double>(TrainingBytes(specs));
  if (all == 0) return 0;
  return static_cast<int64_t>(static_cast<double>(bytes) * state / all);
}

}  // namespace

absl::StatusOr<std::shared_ptr<OffloadPlace>> OffloadPlace::Open(
    const std::vector<at::Tensor>& tensors,
    const std::vector<std::string>& names,
    const std::vector<std::vector<int64_t>>& modules, const PlaceOptions& asked,
    HookOptions hook) {
  std::shared_ptr<OffloadPlace> place(new OffloadPlace);
  TERRACE_ASSIGN_OR_RETURN(
      place->home_,
      OpenOffloadHome(tensors, names, modules, asked, std::move(hook)));
  const OffloadPlan& plan = place->plan();
  if (plan.all_in_memory && plan.share == 0 && asked.budget_bytes >= 0) {
    place->beside_ =
        std::make_shared<BesideBudget>(asked.budget_bytes - plan.budget_bytes);
  }
  MutexLock lock(place->mutex_);
  place->window_bytes_ = place->plan().window_bytes;
  place->activation_limit_ = place->plan().activation_bytes;
  return place;
}

absl::StatusOr<PlacementScope> OffloadPlace::BeginPlacement() const {
  if (!plan().all_in_memory) return hook().Place();
  return absl::FailedPreconditionError(absl::StrCat(
      "new tensors have nowhere to go: the memory budget holds the parameters "
      "and the state of their training, ",
      FormatBytes(plan().everything_bytes + plan().training_bytes),
      ", so that nothing is below it; a smaller budget and a path, or a "
      "daemon, "
      "have them below"));
}

int64_t OffloadPlace::window_bytes() const {
  MutexLock lock(mutex_);
  return window_bytes_;
}

int64_t OffloadPlace::activation_limit() const {
  MutexLock lock(mutex_);
  return activation_limit_;
}

int64_t OffloadPlace::added_bytes() const {
  MutexLock lock(mutex_);
  return added_bytes_;
}

int64_t OffloadPlace::budget_bytes() const {
  MutexLock lock(mutex_);
  return plan().budget_bytes + added_bytes_;
}

int64_t OffloadPlace::LeftOf(int64_t useful_bytes) const {
  return std::clamp<int64_t>(plan().growth_bytes - joined_bytes_, 0,
                             useful_bytes);
}

int64_t OffloadPlace::GrowthFor(absl::Span<const ParameterSpec> specs) const {
  return static_cast<int64_t>(
      std::ceil(plan().share * static_cast<double>(TrainingBytes(specs))));
}

absl::StatusOr<OffloadPlace::Share> OffloadPlace::Join(
    absl::Span<const ParameterSpec> specs, OptimizerOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(
      const OptimizerPlan least,
      OffloadedOptimizer::Plan(specs, options, kUnlimitedPlan));
  const int64_t largest = LargestGradient(specs);
  MutexLock lock(mutex_);
  Share share;
  if (plan().share > 0) {
    const int64_t grown = GrowthFor(specs);
    const int64_t window =
        std::max(least.minimum_budget_bytes,
                 std::min(StatePart(grown, specs), kLeastShareWindowBytes));
    share.bytes = std::max(grown, window + largest);
  } else {
    share.bytes = LeftOf(UsefulBytes(specs, least));
  }
  share.largest_bytes = largest;
  Add(share);
  share.window_bytes =
      ChooseWindow(specs, share.bytes, least.minimum_budget_bytes, options);
  share.most_window_bytes = options.window_bytes;
  joined_windows_ += share.window_bytes;
  const absl::Status status = Arrange();
  if (!status.ok()) {
    Remove(share);
    Arrange().IgnoreError();  // everything is as it was
    return status;
  }
  options.name = absl::StrCat("optimizer", ++number_);
  hook().EvictAll();  // the window needs its bytes in one piece
  return share;
}

int64_t OffloadPlace::ChooseWindow(absl::Span<const ParameterSpec> specs,
                                   int64_t added_bytes, int64_t least_bytes,
                                   OptimizerOptions& options) const {
  const int64_t total = WindowBudget();
  const int64_t least =
      is_on_device() ? plan().below_device_bytes : plan().budget_bytes;
  const int64_t wanted = added_bytes > 0
                             ? SharesWindow(StatePart(added_bytes, specs))
                             : std::min(least / 8, kMostWindowBytes);
  const int64_t room = total - joined_windows_ - BesideWindows();
  options.window_bytes =
      std::max({least_bytes, std::min(wanted, room), int64_t{1}});
  // The plan may take less: a few chunks do not fill the window, and slots for
  // many are whole chunks.
  const auto planned = OffloadedOptimizer::Plan(specs, options, total);
  if (!planned.ok()) return options.window_bytes;
  if (planned->slots >= kLaterSlots) return planned->window_bytes;
  const int64_t later = WindowBytes(
      std::max(planned->chunk_bytes, kLaterChunkBytes), kLaterSlots);
  options.window_bytes = std::max(options.window_bytes, std::min(later, room));
  return planned->window_bytes;
}

int64_t OffloadPlace::WindowBudget() const {
  const int64_t memory = runtime().GetStats().host.budget_bytes;
  return is_on_device() ? memory
                        : std::max(memory, plan().budget_bytes + joined_bytes_);
}

absl::Status OffloadPlace::CheckLeast(int64_t total_bytes) const {
  const int64_t operations = BesideWindows();
  if (total_bytes - joined_windows_ >= operations) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a budget of ", total_bytes, " bytes",
                   is_on_device() ? " of memory below " + asked().device : "",
                   " is below the minimum of ", operations + joined_windows_,
                   " with an optimizer: ", plan().minimum_reason,
                   "; the largest gradient takes ", LargestBytes(),
                   ", and the optimizer's window ", joined_windows_));
}

absl::Status OffloadPlace::Arrange() {
  if (is_on_device()) return ArrangeOnDevice();
  const int64_t wanted = plan().budget_bytes + joined_bytes_;
  int64_t total = runtime().GetStats().host.budget_bytes;
  TERRACE_RETURN_IF_ERROR(CheckLeast(std::max(total, wanted)));
  // The Runtime uses whole blocks of a budget.
  const int64_t more = RoundDown(wanted, kBlockBytes) - total;
  if (more > 0) {
    TERRACE_RETURN_IF_ERROR(runtime().GrowMemory(more));
    total += more;
  }
  added_bytes_ = std::max(added_bytes_, joined_bytes_);
  const int64_t rest = total - joined_windows_;
  window_bytes_ = std::min(rest, OffloadWindow(plan(), rest));
  TERRACE_RETURN_IF_ERROR(hook().Resize(window_bytes_, rest));
  if (plan().activation_bytes > 0) {
    activation_limit_ = ActivationLimit(plan(), rest - LargestBytes());
    hook().BeginSaving(activation_limit_);
  }
  return absl::OkStatus();
}

// Nothing grows: windows are of the CPU's memory, and the hook's is what it
// was, but for the largest gradient.
absl::Status OffloadPlace::ArrangeOnDevice() {
  TERRACE_RETURN_IF_ERROR(CheckLeast(WindowBudget()));
  const int64_t total = plan().budget_bytes;
  if (OperationBytes() > total) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a budget of ", total, " bytes of ", asked().device,
                     " is below the minimum of ", OperationBytes(),
                     " with an optimizer: ", plan().minimum_reason,
                     "; the largest gradient takes ", LargestBytes()));
  }
  if (plan().activation_bytes > 0) {
    activation_limit_ = ActivationLimit(plan(), total - LargestBytes());
    hook().BeginSaving(activation_limit_);
  }
  return absl::OkStatus();
}

absl::Status OffloadPlace::Extend(Share& share,
                                  absl::Span<const ParameterSpec> added) {
  TERRACE_ASSIGN_OR_RETURN(const OptimizerPlan most,
                           OffloadedOptimizer::Plan(added, {}, kUnlimitedPlan));
  Share after = share;
  // With more chunks the optimizer may use all of its window.
  after.window_bytes = share.most_window_bytes;
  after.largest_bytes = std::max(share.largest_bytes, LargestGradient(added));
  MutexLock lock(mutex_);
  // The window is the share's.
  after.bytes += plan().share > 0
                     ? GrowthFor(added)
                     : LeftOf(UsefulBytes(added, most) - most.window_bytes);
  Remove(share);
  Add(after);
  const absl::Status status = Arrange();
  if (!status.ok()) {
    Remove(after);
    Add(share);
    Arrange().IgnoreError();  // everything is as it was
    return status;
  }
  share = after;
  hook().EvictAll();  // another window needs its bytes in one piece
  return status;
}

void OffloadPlace::TakeBack(Share& share, const Share& before) {
  MutexLock lock(mutex_);
  Remove(share);
  Add(before);
  share = before;
  Arrange().IgnoreError();
}

void OffloadPlace::Leave(const Share& share) {
  MutexLock lock(mutex_);
  Remove(share);
  // The error is ignored: a hook that is closed needs no window.
  Arrange().IgnoreError();
}

void OffloadPlace::Add(const Share& share) {
  joined_bytes_ += share.bytes;
  joined_windows_ += share.window_bytes;
  largest_bytes_.insert(share.largest_bytes);
}

void OffloadPlace::Remove(const Share& share) {
  joined_bytes_ -= share.bytes;
  joined_windows_ -= share.window_bytes;
  largest_bytes_.erase(largest_bytes_.find(share.largest_bytes));
}

}  // namespace terrace
