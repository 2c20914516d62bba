#include "libtorch/offload/offload_plan.h"

#include <algorithm>
#include <cstddef>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

// Memory for activations beside a share of the parameters, which says nothing
// of them.
constexpr int64_t kActivationBytes = 256 << 20;
// The window of an optimizer in memory below a device, at most.
constexpr int64_t kWindowBytes = 32 << 20;
// The saved tensors that one operation of backward takes, and one to come.
constexpr int64_t kOperands = 5;

const c10::StorageImpl* StorageOf(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) {
    return nullptr;
  }
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

int64_t SizeOf(const at::Tensor& tensor) {
  const c10::StorageImpl* const storage = StorageOf(tensor);
  return storage == nullptr ? 0 : static_cast<int64_t>(storage->nbytes());
}

// The memory that the tensors of one module take, and the index of the largest
// of them.
struct Operands {
  int64_t bytes = 0;
  size_t largest = 0;
};

absl::StatusOr<Operands> Measure(const std::vector<at::Tensor>& tensors,
                                 const std::vector<int64_t>& module) {
  Operands operands;
  absl::flat_hash_set<const c10::StorageImpl*> seen;
  for (const int64_t index : module) {
    if (index < 0 || index >= static_cast<int64_t>(tensors.size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", index, " of a module; there are ", tensors.size()));
    }
    const auto place = static_cast<size_t>(index);
    const int64_t size = SizeOf(tensors[place]);
    if (size == 0 || !seen.insert(StorageOf(tensors[place])).second) continue;
    if (operands.bytes == 0 || size > SizeOf(tensors[operands.largest])) {
      operands.largest = place;
    }
    operands.bytes += ResidentBytes(size);
  }
  return operands;
}

// Returns the bytes of one tensor in use, one that comes and one that leaves.
int64_t FewTensorsBytes() { return 3 * ResidentBytes(1); }

// Sets the minimum and its reason in the plan. `largest` names the largest
// tensor of the module that takes most.
void TakeMinimum(const PlaceOptions& asked, const std::string& largest,
                 OffloadPlan& plan) {
  const std::string operations = absl::StrCat(
      plan.operation_bytes, " that the operations of one module take, '",
      largest, "' most of them");
  plan.minimum_bytes = 2 * plan.operation_bytes;
  plan.minimum_reason = absl::StrCat("twice the ", operations);
  if (plan.minimum_bytes < FewTensorsBytes()) {
    plan.minimum_bytes = FewTensorsBytes();
    plan.minimum_reason = "three tensors of the least size";
  }
  if (asked.activations_above == 0) {
    const int64_t all = plan.everything_bytes + plan.training_bytes;
    if (all >= plan.minimum_bytes) return;
    plan.minimum_bytes = all;
    plan.minimum_reason = "all that the model has";
    return;
  }
  const int64_t activations =
      kOperands * ResidentBytes(asked.activations_above);
  if (plan.operation_bytes + activations <= plan.minimum_bytes) return;
  plan.minimum_bytes = plan.operation_bytes + activations;
  plan.minimum_reason = absl::StrCat(activations, " for ", kOperands,
                                     " of the least activations, ",
                                     asked.activations_above, " bytes each");
  if (plan.operation_bytes == 0) return;
  absl::StrAppend(&plan.minimum_reason, ", and ", operations);
}

// What of the CPU's memory is below a device: what was asked for, else a tenth
// of the model where it goes on to a disk, and all of it where it does not. It
// does not grow, so that all but bytes have room for an optimizer's window.
absl::Status PutBelowDevice(const PlaceOptions& asked, OffloadPlan& plan) {
  if (asked.device.empty()) return absl::OkStatus();
  const bool has_more = asked.has_below_memory();
  int64_t& below = plan.below_device_bytes;
  below = asked.below_device_bytes;
  const bool is_all = below == PlaceOptions::kEverything;
  if (is_all) below = plan.everything_bytes / (has_more ? 10 : 1);
  if (is_all || asked.below_device_is_share) {
    below = std::max(below, plan.minimum_bytes +
                                std::min(plan.training_bytes, kWindowBytes));
  }
  if (below < plan.minimum_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(below, " bytes of memory below ", asked.device,
                     " are below the minimum of ", plan.minimum_bytes, ": ",
                     plan.minimum_reason));
  }
  if (has_more || below + plan.budget_bytes >= plan.everything_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      asked.device, " has ", plan.budget_bytes, " bytes and dram ", below,
      ", the parameters are ", plan.parameter_bytes, " and take ",
      plan.everything_bytes, ", and there is no tier below for the rest"));
}

// Sets the budget that was asked for. One that is a share of the parameters is
// raised to what works.
void TakeBudget(const PlaceOptions& asked, OffloadPlan& plan) {
  plan.budget_bytes = asked.budget_bytes;
  if (!asked.at_least_minimum || asked.budget_bytes < 0) return;
  const bool is_on_device = !asked.device.empty();
  // A device's memory does not grow once an optimizer joins.
  const int64_t least =
      plan.minimum_bytes + (is_on_device ? plan.largest_gradient_bytes : 0);
  plan.budget_bytes = std::max(asked.budget_bytes, least);
  if (is_on_device || plan.parameter_bytes == 0) return;
  plan.share = std::min(1.0, static_cast<double>(asked.budget_bytes) /
                                 static_cast<double>(plan.parameter_bytes));
}

absl::Status ShareOut(const PlaceOptions& asked, OffloadPlan& plan) {
  const bool has_activations = asked.activations_above > 0;
  const bool is_on_device = !asked.device.empty();
  const int64_t everything =
      std::max({plan.everything_bytes, plan.minimum_bytes, FewTensorsBytes()}) +
      (is_on_device ? plan.gradient_bytes : 0);
  const bool has_below = asked.has_below();
  TakeBudget(asked, plan);
  // Where there is a tier below, the model is all in memory only if the budget
  // also holds what an optimizer adds.
  const int64_t all =
      plan.everything_bytes + (has_below ? plan.training_bytes : 0);
  if (has_activations) {
    if (plan.budget_bytes == PlaceOptions::kEverything) {
      plan.budget_bytes = everything;
    }
    if (asked.budget_bytes < 0 || asked.at_least_minimum) {
      plan.beside_share_bytes = kActivationBytes;
      plan.budget_bytes += kActivationBytes;
    }
    plan.activation_bytes = ActivationLimit(plan, plan.budget_bytes);
  } else if (is_on_device) {
    // The device's memory is the Runtime's also where all fits.
  } else if (!asked.daemon.empty()) {
    // The memory is the daemon's also where all fits. What optimizers add it
    // gives as they do.
    if (plan.budget_bytes == PlaceOptions::kEverything) {
      plan.budget_bytes = 2 * all;
    }
  } else if (plan.budget_bytes == PlaceOptions::kEverything ||
             plan.budget_bytes >= all) {
    plan.all_in_memory = true;
    plan.budget_bytes = plan.window_bytes = everything;
    return absl::OkStatus();
  }
  if (plan.budget_bytes < plan.minimum_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a budget of ", plan.budget_bytes, " bytes is below the minimum of ",
        plan.minimum_bytes, ": ", plan.minimum_reason));
  }
  if (!has_below) {
    return absl::InvalidArgumentError(absl::StrCat(
        asked.named_tiers ? "tiers: dram has " : "memory_budget is ",
        plan.budget_bytes, " bytes, the parameters are ", plan.parameter_bytes,
        " and take ", plan.everything_bytes, ", and there is no ",
        asked.named_tiers ? "tier below" : "nvme_path", " for the rest"));
  }
  if (plan.share > 0) {
    // Growth is of addresses: training counts twice, as one optimizer may be
    // made in place of another.
    plan.growth_bytes =
        2 * plan.training_bytes + everything + kJoinedWindowBytes;
  } else if (!has_activations && !is_on_device) {
    plan.growth_bytes = std::max<int64_t>(0, plan.budget_bytes - everything);
  }
  if (!has_activations && plan.budget_bytes >= everything) {
    plan.budget_bytes = plan.window_bytes = everything;
    return absl::OkStatus();
  }
  plan.window_bytes = OffloadWindow(plan, plan.budget_bytes);
  return absl::OkStatus();
}

}  // namespace

int64_t OffloadWindow(const OffloadPlan& plan, int64_t bytes) {
  // A quarter is for tensors that are written back while operations go on.
  return std::max(plan.operation_bytes, bytes / 4 * 3);
}

int64_t ActivationLimit(const OffloadPlan& plan, int64_t bytes) {
  return (bytes - plan.operation_bytes) / kOperands;
}

int64_t StorageBytes(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  absl::flat_hash_set<const c10::StorageImpl*> seen;
  for (const at::Tensor& tensor : tensors) {
    if (seen.insert(StorageOf(tensor)).second) bytes += SizeOf(tensor);
  }
  return bytes;
}

absl::StatusOr<OffloadPlan> PlanOffload(
    const std::vector<at::Tensor>& tensors,
    const std::vector<std::string>& names,
    const std::vector<std::vector<int64_t>>& modules,
    const PlaceOptions& asked) {
  if (names.size() != tensors.size()) {
    return absl::InvalidArgumentError("a name for each parameter");
  }
  OffloadPlan plan;
  absl::flat_hash_set<const c10::StorageImpl*> seen;
  for (const at::Tensor& tensor : tensors) {
    const int64_t size = SizeOf(tensor);
    if (size == 0 || !seen.insert(StorageOf(tensor)).second) continue;
    ++plan.storages;
    plan.parameter_bytes += size;
    plan.everything_bytes += ResidentBytes(size);
  }
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    // A 16-bit parameter has a master too.
    const int64_t state = tensor.element_size() < 4 ? 12 : 8;
    const int64_t gradient =
        ResidentBytes(tensor.numel() * tensor.element_size());
    plan.gradient_bytes += gradient;
    plan.largest_gradient_bytes =
        std::max(plan.largest_gradient_bytes, gradient);
    plan.training_bytes += ResidentBytes(tensor.numel() * state) + gradient;
  }
  std::string largest;
  for (const std::vector<int64_t>& module : modules) {
    TERRACE_ASSIGN_OR_RETURN(const Operands operands, Measure(tensors, module));
    if (operands.bytes <= plan.operation_bytes) continue;
    plan.operation_bytes = operands.bytes;
    largest = names[operands.largest];
  }
  // The operands of one module are added, since free room may lie in parts.
  plan.everything_bytes += plan.operation_bytes;
  TakeMinimum(asked, largest, plan);
  TERRACE_RETURN_IF_ERROR(ShareOut(asked, plan));
  TERRACE_RETURN_IF_ERROR(PutBelowDevice(asked, plan));
  return plan;
}

}  // namespace terrace
