#include "runtime/torch/hook/gradients.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/bytes.h"
#include "runtime/base/io_fault.h"
#include "runtime/torch/hook/managed_storages.h"

namespace terrace {
namespace {

// Of one leaf; its accumulator has it.
class AfterAccumulation final : public torch::autograd::FunctionPostHook {
 public:
  AfterAccumulation(NamedTensor leaf, Gradients::Manage manage)
      : leaf_(std::move(leaf)), manage_(std::move(manage)) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    const absl::Status status = manage_(leaf_, number_);
    TORCH_CHECK(status.ok(), "terrace: ", std::string(status.message()));
    return outputs;
  }

 private:
  const NamedTensor leaf_;
  const Gradients::Manage manage_;
  int64_t number_ = 0;
};

}  // namespace

absl::Status ManageGradientOf(const NamedTensor& leaf,
                              ManagedStorages& storages, int64_t& number) {
  const at::Tensor& gradient = leaf.tensor.grad();
  if (!gradient.defined() || gradient.layout() != at::kStrided ||
      storages.Find(gradient) != nullptr) {
    return absl::OkStatus();
  }
  const std::string name = absl::StrCat(leaf.name, ".grad");
  absl::Status status = storages.Add({{name, gradient}});
  // One of before is not gone yet: another has it.
  while (absl::IsAlreadyExists(status)) {
    status = storages.Add({{absl::StrCat(name, " ", ++number), gradient}});
  }
  if (status.ok()) return status;
  status =
      Reworded(status, absl::StrCat("'", name, "' ",
                                    FormatBytes(static_cast<int64_t>(
                                        gradient.storage().nbytes())),
                                    ": ", absl::string_view(status.message())));
  storages.NoteNotTaken(status);
  return status;
}

Gradients::Gradients(Manage manage) : manage_(std::move(manage)) {}

Gradients::~Gradients() {
  for (const Watched& each : watched_) {
    each.accumulator->del_post_hook(each.hook);
  }
}

absl::Status Gradients::Add(absl::Span<const NamedTensor> leaves,
                            Frozen frozen) {
  for (const auto& [name, leaf] : leaves) {
    if (!leaf.defined() || !leaf.is_leaf() ||
        (!leaf.requires_grad() && frozen == Frozen::kRefused)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", name, "' is no leaf that requires a gradient"));
    }
  }
  for (const NamedTensor& leaf : leaves) {
    Accumulator accumulator = AccumulatorOf(leaf.tensor);
    if (std::any_of(watched_.begin(), watched_.end(), [&](const Watched& each) {
          return each.accumulator == accumulator;
        })) {
      continue;
    }
    const uintptr_t hook = accumulator->add_post_hook(
        std::make_unique<AfterAccumulation>(leaf, manage_));
    watched_.push_back({std::move(accumulator), hook});
  }
  return absl::OkStatus();
}

// A frozen leaf has one only if it was not frozen before, and keeps it when it
// is thawed.
Gradients::Accumulator Gradients::AccumulatorOf(const at::Tensor& leaf) {
  if (leaf.requires_grad()) {
    return torch::autograd::impl::grad_accumulator(leaf);
  }
  leaf.set_requires_grad(true);
  const absl::Cleanup freeze = [&] { leaf.set_requires_grad(false); };
  return torch::autograd::impl::grad_accumulator(leaf);
}

}  // namespace terrace
