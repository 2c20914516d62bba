// Checkpoints of the Python package: the model's tensors where they are, the
// optimizer's state streamed, all else as one block of bytes.
#include "terrace/checkpoint.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/status_macros.h"
#include "runtime/torch/python/optimizer_binding.h"

namespace terrace {
namespace {

constexpr absl::Duration kPatience = absl::Hours(24);
constexpr char kRest[] = "python";  // the key of the block

// Tensors as a checkpoint wants them: those whose elements do not lie in order,
// or not in CPU memory, by way of a copy.
struct Described {
  std::vector<CheckpointTensor> tensors;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // (theirs, in order)
};

absl::StatusOr<Described> InOrder(const std::vector<at::Tensor>& tensors,
                                  const std::vector<std::string>& names,
                                  const std::vector<int64_t>& positions) {
  if (names.size() != tensors.size() || positions.size() != names.size()) {
    return absl::InvalidArgumentError(
        "a name and a position for each tensor of a checkpoint");
  }
  Described described;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TERRACE_ASSIGN_OR_RETURN(const ParameterSpec spec,
                             DescribeTensor(tensors[i], names[i]));
    at::Tensor in_order = tensors[i].detach();
    if (!in_order.is_contiguous() || !in_order.is_cpu()) {
      described.copies.emplace_back(in_order,
                                    in_order.to(at::kCPU).contiguous());
      in_order = described.copies.back().second;
    }
    CheckpointTensor tensor;
    tensor.name = spec.name;
    tensor.dtype = spec.dtype;
    tensor.shape = tensors[i].sizes().vec();
    tensor.data = in_order.data_ptr();
    tensor.optimizer_parameter = static_cast<int>(positions[i]);
    described.tensors.push_back(std::move(tensor));
  }
  return described;
}

Outcome ToOutcome(const absl::Status& status) {
  return {static_cast<int64_t>(status.code()), std::string(status.message())};
}

}  // namespace

Outcome OptimizerBinding::Save(const std::string& directory,
                               const std::vector<at::Tensor>& tensors,
                               const std::vector<std::string>& names,
                               const std::vector<int64_t>& positions,
                               const at::Tensor& rest) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  const at::NoGradGuard without_graph;
  const absl::StatusOr<Described> described =
      InOrder(tensors, names, positions);
  if (!described.ok()) return ToOutcome(described.status());
  const at::Tensor bytes = rest.contiguous();
  CheckpointContents contents;
  contents.values[kRest] = CheckpointBytes{
      std::string(static_cast<const char*>(bytes.const_data_ptr()),
                  static_cast<size_t>(bytes.nbytes()))};
  MutexLock lock(mutex_);
  reader_.reset();
  contents.parameters = described->tensors;
  contents.optimizer = optimizer_.get();
  const absl::StatusOr<int64_t> size =
      SaveCheckpoint(directory, contents, absl::Now() + kPatience);
  if (!size.ok()) return ToOutcome(size.status());
  return {0, absl::StrCat(*size)};
}

std::tuple<int64_t, std::string, at::Tensor> OptimizerBinding::Load(
    const std::string& directory, const std::vector<at::Tensor>& tensors,
    const std::vector<std::string>& names,
    const std::vector<int64_t>& positions) {
  at::Tensor rest = at::empty({0}, at::kByte);
  absl::Status status = CheckProcess();
  if (status.ok()) {
    MutexLock lock(mutex_);
    reader_.reset();
    status = LoadLocked(directory, tensors, names, positions, rest);
  }
  return {static_cast<int64_t>(status.code()), std::string(status.message()),
          rest};
}

absl::Status OptimizerBinding::LoadLocked(
    const std::string& directory, const std::vector<at::Tensor>& tensors,
    const std::vector<std::string>& names,
    const std::vector<int64_t>& positions, at::Tensor& rest) {
  const at::NoGradGuard without_graph;
  TERRACE_ASSIGN_OR_RETURN(Described described,
                           InOrder(tensors, names, positions));
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                           Checkpoint::Open(directory));
  const auto found = checkpoint->values().find(kRest);
  if (found == checkpoint->values().end() ||
      !std::holds_alternative<CheckpointBytes>(found->second)) {
    return absl::InvalidArgumentError(absl::StrCat(
        directory, ": this checkpoint was not written by terrace.save"));
  }
  TERRACE_RETURN_IF_ERROR(checkpoint->Load(described.tensors, optimizer_.get(),
                                           absl::Now() + kPatience));
  for (auto& [theirs, in_order] : described.copies) theirs.copy_(in_order);
  for (const at::Tensor& tensor : tensors) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
  const std::string& bytes = std::get<CheckpointBytes>(found->second).value;
  rest = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(rest.mutable_data_ptr(), bytes.data(), bytes.size());
  return absl::OkStatus();
}

}  // namespace terrace
