// The state of many parameters in one call, as optimizer.state and
// state_dict() hand it out.
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/status_macros.h"
#include "runtime/torch/guarded.h"
#include "runtime/torch/python/optimizer_binding.h"

namespace terrace {
namespace {

// Of one parameter: a transfer that takes longer is stuck.
constexpr absl::Duration kPatience = absl::Hours(1);

absl::Span<float> Elements(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<float>(),
          static_cast<size_t>(tensor.numel())};
}

}  // namespace

std::tuple<Outcome, std::vector<at::Tensor>> OptimizerBinding::CopyStates(
    const std::vector<int64_t>& indices,
    const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> copies;
  absl::Status status = CheckProcess();
  if (!status.ok()) return {ToOutcome(status), copies};
  const at::NoGradGuard without_graph;
  MutexLock lock(mutex_);
  status = CheckOpen();
  if (!status.ok()) return {ToOutcome(status), copies};
  if (indices.size() != parameters.size()) {
    return {ToOutcome(absl::InvalidArgumentError("an index a parameter")),
            copies};
  }
  auto reader = optimizer_->OpenStateReader();
  if (!reader.ok()) return {ToOutcome(reader.status()), copies};
  copies.reserve(indices.size() * 4);
  for (size_t i = 0; i < indices.size() && status.ok(); ++i) {
    // There may be no memory for a copy.
    status.Update(Guarded(c10::kCPU, [&] {
      status = CopyStateLocked(indices[i], parameters[i], **reader, copies);
    }));
  }
  if (!status.ok()) copies.clear();
  return {ToOutcome(status), std::move(copies)};
}

absl::Status OptimizerBinding::CopyStateLocked(
    int64_t index, const at::Tensor& parameter, StateReader& reader,
    std::vector<at::Tensor>& copies) {
  using Kind = OffloadedOptimizer::StateKind;
  const auto at = static_cast<size_t>(index);
  if (index < 0 || at >= specs_.size() ||
      parameter.numel() != specs_[at].count) {
    return absl::InvalidArgumentError(
        absl::StrCat("no parameter ", index, " of ", parameter.numel(),
                     " elements is stepped here"));
  }
  const at::TensorOptions options = at::TensorOptions(at::kFloat);
  const auto place = static_cast<int>(index);
  const int64_t steps = optimizer_->parameter_steps()[at];
  copies.push_back(at::scalar_tensor(static_cast<double>(steps), options));
  StateSpans spans;
  if (specs_[at].dtype != DType::kFloat32) {
    if (optimizer_->HasState(place, Kind::kMaster)) {
      copies.push_back(at::empty(parameter.sizes(), options));
      spans.master = Elements(copies.back());
    } else {
      copies.push_back(
          parameter.detach().to(at::kCPU, at::kFloat).contiguous());
    }
  }
  copies.push_back(at::empty(parameter.sizes(), options));
  spans.first_moment = Elements(copies.back());
  copies.push_back(at::empty(parameter.sizes(), options));
  spans.second_moment = Elements(copies.back());
  return reader.Read(place, 0, spans, absl::Now() + kPatience);
}

}  // namespace terrace
