#include "libtorch/step/gathered/known_parameters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/step/gathered/parameters.h"

namespace terrace {

absl::StatusOr<KnownParameters::Added> KnownParameters::FindAdded(
    const std::vector<::torch::optim::OptimizerParamGroup>& groups,
    OffloadedTensors offloaded) {
  std::unordered_map<const c10::TensorImpl*, size_t> positions;
  Added added;
  size_t position = 0;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      const c10::TensorImpl* const key = parameter.unsafeGetTensorImpl();
      const auto [found, first] = positions.emplace(key, position);
      if (!first) {
        return absl::InvalidArgumentError(
            absl::StrCat("parameters ", found->second, " and ", position,
                         " are the same tensor"));
      }
      if (indices_.find(key) == indices_.end()) {
        TERRACE_ASSIGN_OR_RETURN(
            ParameterSpec spec,
            DescribeParameter(parameter, position, offloaded));
        // Each parameter has options of its own, since a group may change its
        // members.
        const size_t index = tensors_.size() + added.tensors.size();
        spec.name = absl::StrCat("parameter", index);
        spec.group = static_cast<int>(index);
        added.specs.push_back(std::move(spec));
        added.tensors.push_back(parameter);
      }
      ++position;
    }
  }
  if (added.tensors.empty()) return added;
  std::vector<at::Tensor> all = tensors_;
  all.insert(all.end(), added.tensors.begin(), added.tensors.end());
  TERRACE_RETURN_IF_ERROR(CheckApart(all));
  return added;
}

void KnownParameters::Append(std::vector<at::Tensor> added) {
  for (at::Tensor& parameter : added) {
    indices_.emplace(parameter.unsafeGetTensorImpl(),
                     static_cast<int>(tensors_.size()));
    tensors_.push_back(std::move(parameter));
  }
}

// Parameters are updated at the same time, so none may share an element with
// another.
absl::Status KnownParameters::CheckApart(absl::Span<const at::Tensor> tensors) {
  const auto overlap = apart_.FindOverlap(tensors);
  if (!overlap) return absl::OkStatus();
  return OverlapError(absl::StrCat(overlap->first),
                      absl::StrCat(overlap->second));
}

std::vector<bool> KnownParameters::AreIn(
    const std::vector<::torch::optim::OptimizerParamGroup>& groups) const {
  std::vector<bool> are_in(tensors_.size());
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      are_in[static_cast<size_t>(IndexOf(parameter))] = true;
    }
  }
  return are_in;
}

int KnownParameters::IndexOf(const at::Tensor& parameter) const {
  const auto found = indices_.find(parameter.unsafeGetTensorImpl());
  return found == indices_.end() ? -1 : found->second;
}

}  // namespace terrace
