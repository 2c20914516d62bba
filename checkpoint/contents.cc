#include "checkpoint/contents.h"

#include <algorithm>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors.h"

namespace terrace {
namespace {

absl::Status Bad(const CheckpointTensor& tensor, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("parameter '", tensor.name, "' ", what));
}

absl::Status CheckTensor(const CheckpointTensor& tensor) {
  const int64_t count = tensor.count();
  if (count < 0) {
    return Bad(tensor, absl::StrCat("cannot be ",
                                    ShapeText(tensor.dtype, tensor.shape)));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t CheckpointTensor::count() const { return ElementCount(shape); }

absl::Status CheckAddresses(absl::Span<const CheckpointTensor> tensors) {
  for (const CheckpointTensor& tensor : tensors) {
    if (tensor.data == nullptr && tensor.elements == nullptr &&
        tensor.count() > 0) {
      return Bad(tensor, "has no address");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(absl::Span<const CheckpointTensor> tensors,
                          const OffloadedOptimizer* optimizer) {
  std::unordered_set<std::string> names;
  for (const CheckpointTensor& tensor : tensors) {
    TERRACE_RETURN_IF_ERROR(CheckTensor(tensor));
    if (!names.insert(tensor.name).second) {
      return Bad(tensor, "is there twice");
    }
  }
  if (optimizer == nullptr) return absl::OkStatus();
  const absl::Span<const ParameterSpec> specs = optimizer->parameters();
  std::vector<char> named(specs.size(), 0);
  for (const CheckpointTensor& tensor : tensors) {
    const int index = tensor.optimizer_parameter;
    if (index == -1 || index == kOfAnotherRank) continue;
    if (index < 0 || static_cast<size_t>(index) >= specs.size()) {
      return Bad(tensor, absl::StrCat("is said to be parameter ", index,
                                      " of an optimizer of ", specs.size()));
    }
    const auto i = static_cast<size_t>(index);
    if (specs[i].dtype != tensor.dtype || specs[i].count != tensor.count()) {
      return Bad(tensor,
                 absl::StrCat("is ", ShapeText(tensor.dtype, tensor.shape),
                              ", parameter ", index, " of the optimizer has ",
                              specs[i].count, " elements in ",
                              DTypeName(specs[i].dtype)));
    }
    if (named[i] != 0) {
      return Bad(tensor, absl::StrCat("is said to be parameter ", index,
                                      " of the optimizer, as another is"));
    }
    named[i] = 1;
  }
  const auto missing = std::find(named.begin(), named.end(), 0);
  if (missing == named.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "parameter ", missing - named.begin(),
      " of the optimizer is none of the ", tensors.size(), " given"));
}

}  // namespace terrace
