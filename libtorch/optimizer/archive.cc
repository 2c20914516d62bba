// State in LibTorch's archives and tensors.
#include <ATen/ops/empty.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/step/gathered/gathered_step.h"
#include "libtorch/step/gathered/known_parameters.h"
#include "libtorch/step/late/late_steps.h"
#include "terrace/torch/optimizer.h"

namespace terrace {
namespace {

using Kind = OffloadedOptimizer::StateKind;
using ::torch::optim::AdamParamState;
using ::torch::optim::AdamWParamState;
using ::torch::serialize::InputArchive;
using ::torch::serialize::OutputArchive;

// Beside LibTorch's own keys, which it reads and writes.
constexpr char kMasterKey[] = "master";
constexpr char kStepKey[] = "terrace_step";
constexpr char kVersionKey[] = "pytorch_version";
constexpr char kVersion[] = "1.5.0";  // of the archive's layout

void Check(const absl::Status& status) {
  TORCH_CHECK(status.ok(), std::string(status.message()));
}

// The key that LibTorch gives a parameter's state.
std::string KeyOf(const at::Tensor& parameter) {
  return std::to_string(
      reinterpret_cast<size_t>(parameter.unsafeGetTensorImpl()));
}

// What an archive says of one parameter.
template <typename State>
struct Loaded {
  int index;
  State state;
  at::Tensor master;
};

// Whether a saved tensor can be that parameter's state.
void CheckState(const at::Tensor& tensor, const at::Tensor& parameter,
                int index) {
  TORCH_CHECK(tensor.defined(), "parameter ", index, " lacks a saved tensor");
  TORCH_CHECK(tensor.sizes() == parameter.sizes(), "parameter ", index, " is ",
              parameter.sizes(), ", its saved state is ", tensor.sizes());
  TORCH_CHECK(tensor.is_floating_point() && tensor.layout() == at::kStrided,
              "parameter ", index, " has a saved state of ",
              tensor.scalar_type(), ", ", tensor.layout());
}

// Null unless the state of `key` is there.
template <typename State>
std::optional<Loaded<State>> ReadOne(InputArchive& states,
                                     const std::string& key, int index,
                                     const at::Tensor& parameter) {
  InputArchive archive;
  if (!states.try_read(key, archive)) return std::nullopt;
  Loaded<State> loaded{index, {}, {}};
  loaded.state.serialize(archive);
  archive.try_read(kMasterKey, loaded.master, /*is_buffer=*/true);
  TORCH_CHECK(!loaded.state.max_exp_avg_sq().defined(), "parameter ", index,
              " has a state with amsgrad");
  TORCH_CHECK(loaded.state.step() >= 0 && loaded.state.step() <= kMostSteps,
              "parameter ", index, " is at step ", loaded.state.step());
  CheckState(loaded.state.exp_avg(), parameter, index);
  CheckState(loaded.state.exp_avg_sq(), parameter, index);
  if (parameter.scalar_type() == at::kFloat) loaded.master.reset();
  if (loaded.master.defined()) CheckState(loaded.master, parameter, index);
  return loaded;
}

// Elements of a state as they are written; null of a tensor that is undefined.
at::Tensor FloatsOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return tensor.to(at::TensorOptions(at::kCPU).dtype(at::kFloat)).contiguous();
}

absl::Span<const float> SpanOf(const at::Tensor& floats) {
  if (!floats.defined()) return {};
  return {floats.const_data_ptr<float>(), static_cast<size_t>(floats.numel())};
}

}  // namespace

ParameterState OffloadedAdamBase::ReadParameterState(
    int index, StateReader& reader) const {
  ParameterState state;
  const auto i = static_cast<size_t>(index);
  state.step = offloaded_->parameter_steps()[i];
  if (state.step == 0) return state;
  const auto make = [&](at::Tensor& tensor) {
    tensor = at::empty(known_->tensors()[i].sizes(), at::kFloat);
    return absl::MakeSpan(tensor.mutable_data_ptr<float>(),
                          static_cast<size_t>(tensor.numel()));
  };
  StateSpans spans;
  spans.first_moment = make(state.exp_avg);
  spans.second_moment = make(state.exp_avg_sq);
  // One that was loaded without a master has none before its next step.
  if (offloaded_->parameters()[i].dtype != DType::kFloat32 &&
      offloaded_->HasState(index, Kind::kMaster)) {
    spans.master = make(state.master);
  }
  Check(reader.Read(index, /*offset=*/0, spans, Deadline()));
  return state;
}

absl::StatusOr<ParameterState> OffloadedAdamBase::StateOf(
    const at::Tensor& parameter) {
  const int index = known_->IndexOf(parameter);
  if (index < 0) {
    return absl::InvalidArgumentError("not a parameter of this optimizer");
  }
  TERRACE_RETURN_IF_ERROR(CheckBetweenSteps("state is read"));
  TERRACE_RETURN_IF_ERROR(late_->Settle());
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<StateReader> reader,
                           offloaded_->OpenStateReader());
  try {
    return ReadParameterState(index, *reader);
  } catch (const c10::Error& error) {
    return absl::InternalError(error.what_without_backtrace());
  }
}

template <typename State, typename Options>
void OffloadedAdamBase::SaveAs(OutputArchive& archive) const {
  Check(CheckBetweenSteps("state is saved"));
  Check(late_->Settle());
  TORCH_CHECK(!offloaded_->incomplete(),
              "the state cannot be saved: a step is incomplete");
  for (const auto& group : param_groups()) {
    Check(ReadGroupOptions(mode_, group.options()).status());
  }
  archive.write(kVersionKey, c10::IValue(kVersion));
  archive.write(kStepKey, c10::IValue(offloaded_->step()));
  absl::StatusOr<std::unique_ptr<StateReader>> reader =
      offloaded_->OpenStateReader();
  Check(reader.status());
  OutputArchive states(archive.compilation_unit());
  for (size_t i = 0; i < known_->tensors().size(); ++i) {
    ParameterState read = ReadParameterState(static_cast<int>(i), **reader);
    if (read.step == 0) continue;
    State state;
    state.step(read.step);
    state.exp_avg(std::move(read.exp_avg));
    state.exp_avg_sq(std::move(read.exp_avg_sq));
    OutputArchive one(archive.compilation_unit());
    state.serialize(one);
    if (read.master.defined()) {
      one.write(kMasterKey, read.master, /*is_buffer=*/true);
    }
    states.write(KeyOf(known_->tensors()[i]), one);
  }
  archive.write("state", states);
  OutputArchive groups(archive.compilation_unit());
  ::torch::optim::detail::serialize<Options>(groups, param_groups());
  archive.write("param_groups", groups);
}

template <typename State, typename Options>
void OffloadedAdamBase::LoadAs(InputArchive& archive) {
  Check(CheckBetweenSteps("state is loaded"));
  late_->Wait().IgnoreError();  // Settle tells
  Check(AdoptParameters());
  c10::IValue version;
  archive.read(kVersionKey, version);
  TORCH_CHECK(version.toStringRef() == kVersion,
              "an archive of an optimizer of version ", version.toStringRef());
  InputArchive states, groups_archive;
  archive.read("state", states);
  archive.read("param_groups", groups_archive);
  std::vector<std::pair<std::vector<std::string>,
                        std::unique_ptr<::torch::optim::OptimizerOptions>>>
      groups;
  ::torch::optim::detail::serialize<Options>(groups_archive, groups);
  TORCH_CHECK(groups.size() == param_groups().size(), "the archive has ",
              groups.size(), " parameter groups, the optimizer has ",
              param_groups().size());
  // All is read and checked before anything changes.
  std::vector<Loaded<State>> loaded;
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::vector<at::Tensor>& params = param_groups()[i].params();
    const std::vector<std::string>& keys = groups[i].first;
    TORCH_CHECK(keys.size() == params.size(), "parameter group ", i, " has ",
                keys.size(), " parameters in the archive, ", params.size(),
                " in the optimizer");
    Check(ReadGroupOptions(mode_, *groups[i].second).status());
    for (size_t j = 0; j < keys.size(); ++j) {
      const int index = known_->IndexOf(params[j]);
      auto one = ReadOne<State>(states, keys[j], index, params[j]);
      if (one) loaded.push_back(*std::move(one));
    }
  }
  std::vector<int64_t> steps(known_->tensors().size(), 0);
  int64_t step = 0;
  for (const Loaded<State>& one : loaded) {
    steps[static_cast<size_t>(one.index)] = one.state.step();
    step = std::max(step, one.state.step());
  }
  c10::IValue saved_step;
  if (archive.try_read(kStepKey, saved_step)) step = saved_step.toInt();
  TORCH_CHECK(step >= 0 && step <= kMostSteps, "an archive of step ", step);
  // As they lie in the chunks, each of which is then written once.
  std::sort(loaded.begin(), loaded.end(),
            [](const auto& a, const auto& b) { return a.index < b.index; });
  absl::StatusOr<std::unique_ptr<StateWriter>> writer =
      offloaded_->OpenStateWriter(Deadline());
  Check(writer.status());
  late_->GiveUp();
  TidyUp();
  gathered_->Forget(/*is_incomplete=*/false);
  for (const Loaded<State>& one : loaded) {
    const at::Tensor master = FloatsOf(one.master);
    const at::Tensor exp_avg = FloatsOf(one.state.exp_avg());
    const at::Tensor exp_avg_sq = FloatsOf(one.state.exp_avg_sq());
    Check((*writer)->Write(
        one.index, /*offset=*/0,
        {SpanOf(master), SpanOf(exp_avg), SpanOf(exp_avg_sq)}, Deadline()));
  }
  Check((*writer)->Commit(step, steps));
  for (size_t i = 0; i < groups.size(); ++i) {
    param_groups()[i].set_options(std::move(groups[i].second));
  }
}

void OffloadedAdamBase::save(OutputArchive& archive) const {
  if (mode_ == AdamMode::kAdamW) {
    SaveAs<AdamWParamState, ::torch::optim::AdamWOptions>(archive);
  } else {
    SaveAs<AdamParamState, ::torch::optim::AdamOptions>(archive);
  }
}

void OffloadedAdamBase::load(InputArchive& archive) {
  if (mode_ == AdamMode::kAdamW) {
    LoadAs<AdamWParamState, ::torch::optim::AdamWOptions>(archive);
  } else {
    LoadAs<AdamParamState, ::torch::optim::AdamOptions>(archive);
  }
}

}  // namespace terrace
