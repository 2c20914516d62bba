#include "examples/train_gpt/offloaded_optimizer.h"

#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "terrace/torch/group_options.h"

namespace train_gpt {
namespace {

using AdamResult = absl::StatusOr<std::unique_ptr<terrace::OffloadedAdamBase>>;

template <typename Adam, typename Home>
AdamResult Make(const OffloadPlan& plan, Home& home,
                const std::vector<at::Tensor>& parameters) {
  auto optimizer = Adam::Create(home, parameters, plan.optimizer);
  if (!optimizer.ok()) return optimizer.status();
  return *std::move(optimizer);
}

template <typename Home>
AdamResult MakeAdam(const OffloadPlan& plan, Home& home,
                    const std::vector<at::Tensor>& parameters) {
  return plan.optimizer.adam.decoupled_decay
             ? Make<terrace::OffloadedAdamW>(plan, home, parameters)
             : Make<terrace::OffloadedAdam>(plan, home, parameters);
}

}  // namespace

absl::StatusOr<std::unique_ptr<OffloadedModelOptimizer>>
OffloadedModelOptimizer::Create(const OffloadPlan& plan,
                                std::unique_ptr<terrace::Runtime> runtime,
                                Gpt& model) {
  terrace::Runtime& place = *runtime;
  std::unique_ptr<OffloadedModelOptimizer> result(
      new OffloadedModelOptimizer(place, std::move(runtime), plan, model));
  AdamResult optimizer = MakeAdam(plan, place, result->parameters_);
  if (!optimizer.ok()) return optimizer.status();
  result->optimizer_ = *std::move(optimizer);
  return result;
}

absl::StatusOr<std::unique_ptr<OffloadedModelOptimizer>>
OffloadedModelOptimizer::Join(const OffloadPlan& plan,
                              terrace::Offload& parameters, Gpt& model) {
  std::unique_ptr<OffloadedModelOptimizer> result(new OffloadedModelOptimizer(
      parameters.runtime(), /*owned=*/nullptr, plan, model));
  AdamResult optimizer = MakeAdam(plan, parameters, result->parameters_);
  if (!optimizer.ok()) return optimizer.status();
  result->optimizer_ = *std::move(optimizer);
  return result;
}

OffloadedModelOptimizer::OffloadedModelOptimizer(
    terrace::Runtime& runtime, std::unique_ptr<terrace::Runtime> owned,
    const OffloadPlan& plan, const Gpt& model)
    : runtime_(runtime),
      owned_(std::move(owned)),
      adam_(plan.optimizer.adam),
      schedule_(plan.schedule) {
  for (const Gpt::Parameter& parameter : model.parameters()) {
    parameters_.push_back(parameter.tensor);
  }
}

absl::StatusOr<double> OffloadedModelOptimizer::Step(double loss_scale) {
  const terrace::AdamOptions adam =
      terrace::AdamAt(schedule_, optimizer_->offloaded().step() + 1, adam_);
  const auto mode = adam.decoupled_decay ? terrace::AdamMode::kAdamW
                                         : terrace::AdamMode::kAdam;
  for (auto& group : optimizer_->param_groups()) {
    group.set_options(terrace::MakeGroupOptions(mode, adam));
  }
  const absl::Status status = optimizer_->TryStep({.loss_scale = loss_scale});
  if (!status.ok()) return status;
  return last_report().gradient_norm;
}

absl::StatusOr<at::Tensor> OffloadedModelOptimizer::Exact(int64_t index) {
  const at::Tensor parameter = parameters_[static_cast<size_t>(index)].detach();
  if (parameter.scalar_type() == at::kFloat) return parameter;
  // Where no step has been taken there is no master yet.
  if (optimizer_->offloaded().step() == 0) return parameter.to(at::kFloat);
  at::Tensor master = at::empty(parameter.sizes(), at::kFloat);
  const absl::Status status = optimizer_->offloaded().ReadState(
      static_cast<int>(index), terrace::OffloadedOptimizer::StateKind::kMaster,
      /*offset=*/0,
      {static_cast<float*>(master.data_ptr()),
       static_cast<size_t>(master.numel())},
      absl::Now() + absl::Minutes(1));
  if (!status.ok()) return status;
  return master;
}

terrace::Stats OffloadedModelOptimizer::Complete(StepRecord* record) {
  const terrace::StepReport& step = last_report();
  const terrace::Stats stats = GetStats();
  record->update_seconds = step.compute_seconds;
  record->other_seconds = step.other_seconds;
  record->blocked_read_seconds = step.blocked_read_seconds;
  record->blocked_write_seconds = step.blocked_write_seconds;
  record->blocked_space_seconds = step.blocked_space_seconds;
  record->bytes_read = stats.bytes_read() - bytes_read_;
  record->bytes_written = stats.bytes_written() - bytes_written_;
  bytes_read_ = stats.bytes_read();
  bytes_written_ = stats.bytes_written();
  link_bytes_.resize(stats.links.size());
  record->link_bytes.clear();
  for (size_t i = 0; i < stats.links.size(); ++i) {
    record->link_bytes.push_back(stats.links[i].bytes - link_bytes_[i]);
    link_bytes_[i] = stats.links[i].bytes;
  }
  return stats;
}

absl::Status OffloadedModelOptimizer::Close() {
  optimizer_.reset();
  if (owned_ == nullptr) return absl::OkStatus();
  return owned_->Close(absl::Now() + absl::Seconds(60));
}

}  // namespace train_gpt
