#include "runtime/torch/hook/gradients.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/bytes.h"
#include "runtime/torch/hook/managed_storages.h"

namespace terrace {
namespace {

// Of one leaf; its accumulator has it.
class AfterAccumulation final : public torch::autograd::FunctionPostHook {
 public:
  AfterAccumulation(const NamedTensor& leaf,
                    std::shared_ptr<ManagedStorages> storages)
      : name_(absl::StrCat(leaf.name, ".grad")),
        leaf_(leaf.tensor),
        storages_(std::move(storages)) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    const at::Tensor& gradient = leaf_.grad();
    if (!gradient.defined() || gradient.layout() != at::kStrided ||
        storages_->Find(gradient) != nullptr) {
      return outputs;
    }
    absl::Status status = storages_->Add({{name_, gradient}});
    // One of before is not gone yet: another has it.
    while (absl::IsAlreadyExists(status)) {
      status =
          storages_->Add({{absl::StrCat(name_, " ", ++number_), gradient}});
    }
    TORCH_CHECK(status.ok(), "terrace: '", name_, "' ",
                FormatBytes(static_cast<int64_t>(gradient.storage().nbytes())),
                ": ", std::string(status.message()));
    return outputs;
  }

 private:
  const std::string name_;
  const at::Tensor leaf_;
  const std::shared_ptr<ManagedStorages> storages_;
  int64_t number_ = 0;
};

}  // namespace

Gradients::Gradients(std::shared_ptr<ManagedStorages> storages)
    : storages_(std::move(storages)) {}

Gradients::~Gradients() {
  for (const Watched& each : watched_) {
    each.accumulator->del_post_hook(each.hook);
  }
}

absl::Status Gradients::Add(absl::Span<const NamedTensor> leaves) {
  for (const auto& [name, leaf] : leaves) {
    if (!leaf.defined() || !leaf.requires_grad() || !leaf.is_leaf()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", name, "' is no leaf that requires a gradient"));
    }
  }
  for (const NamedTensor& leaf : leaves) {
    Accumulator accumulator =
        torch::autograd::impl::grad_accumulator(leaf.tensor);
    if (std::any_of(watched_.begin(), watched_.end(), [&](const Watched& each) {
          return each.accumulator == accumulator;
        })) {
      continue;
    }
    const uintptr_t hook = accumulator->add_post_hook(
        std::make_unique<AfterAccumulation>(leaf, storages_));
    watched_.push_back({std::move(accumulator), hook});
  }
  return absl::OkStatus();
}

}  // namespace terrace
