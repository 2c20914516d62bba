#include "libtorch/python/step_binding.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/hook/operation_net.h"

namespace terrace {
namespace {

using Late = OptimizerHome::Late;

// A step that takes longer is stuck, and so are updates after its last
// gradient.
constexpr absl::Duration kStepPatience = absl::Hours(1);

absl::Status NoneBegan() {
  return absl::FailedPreconditionError("no step began in backward");
}

std::vector<bool> AreStepped(absl::Span<const int64_t> groups) {
  std::vector<bool> are_stepped;
  for (const int64_t group : groups) are_stepped.push_back(group != kInNoGroup);
  return are_stepped;
}

// Does what may find no memory for a copy, or no device.
template <typename Work>
absl::Status GuardedCopies(const Work& work) {
  absl::Status status;
  status.Update(Guarded(c10::kCPU, [&] { status = work(); }));
  return status;
}

// The state is that of a step whose parameters are gone with the copies.
absl::Status NotReturned(const absl::Status& why) {
  return absl::DataLossError(
      absl::StrCat("parameters out of order were stepped and could not be "
                   "given their new values: ",
                   why.message()));
}

}  // namespace

Outcome StepBinding::Step(const std::vector<at::Tensor>& parameters,
                          const at::Tensor& group_of,
                          const std::vector<double>& numbers, double loss_scale,
                          const std::vector<at::Tensor>& everything) {
  return home_.Locked([&] {
    return StepNow(parameters, group_of, numbers, loss_scale, everything);
  });
}

absl::Status StepBinding::StepNow(const std::vector<at::Tensor>& parameters,
                                  const at::Tensor& group_of,
                                  const std::vector<double>& numbers,
                                  double loss_scale,
                                  const std::vector<at::Tensor>& everything) {
  TERRACE_RETURN_IF_ERROR(home_.CheckOpen());
  OffloadedOptimizer& optimizer = *home_.optimizer();
  TERRACE_ASSIGN_OR_RETURN(const absl::Span<const int64_t> groups,
                           GroupsIn(group_of, home_.specs().size()));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<AdamOptions> adam,
                           AdamOfEach(groups, numbers, home_.options()));
  const absl::Cleanup end = [this] {
    norm_gradients_.Clear();
    home_.EndStep();
  };
  absl::Status status = GuardedCopies([&]() -> absl::Status {
    TERRACE_RETURN_IF_ERROR(norm_gradients_.Gather(everything));
    return home_.gathered().Gather(home_.Source(parameters), AreStepped(groups),
                                   optimizer.incomplete());
  });
  if (!status.ok()) return status;
  StepArguments arguments;
  arguments.loss_scale = loss_scale;
  arguments.groups = adam;
  if (!everything.empty()) arguments.norm_gradients = norm_gradients_.data();
  status = optimizer.Step(arguments, home_.gathered().data(),
                          absl::Now() + kStepPatience);
  // A step that failed may have written some of them.
  const bool written =
      status.ok() ? !optimizer.last_report().skipped : optimizer.incomplete();
  const absl::Status returned = Guarded(c10::kCPU, [&] {
    home_.gathered().Return(written, optimizer.incomplete());
  });
  if (!returned.ok()) status = NotReturned(returned);
  if (status.ok()) home_.CountStep();
  return status;
}

Outcome StepBinding::StepLate(const std::vector<at::Tensor>& parameters,
                              const at::Tensor& group_of,
                              const std::vector<double>& numbers,
                              double loss_scale,
                              const std::vector<at::Tensor>& everything) {
  return home_.Locked([&] {
    return BeginLate(parameters, group_of, numbers, loss_scale, everything);
  });
}

absl::Status StepBinding::BeginLate(const std::vector<at::Tensor>& parameters,
                                    const at::Tensor& group_of,
                                    const std::vector<double>& numbers,
                                    double loss_scale,
                                    const std::vector<at::Tensor>& everything) {
  TERRACE_RETURN_IF_ERROR(home_.SettleLate(Late::kTryAgain));
  TERRACE_RETURN_IF_ERROR(home_.CheckOpen());
  TERRACE_ASSIGN_OR_RETURN(const absl::Span<const int64_t> groups,
                           GroupsIn(group_of, home_.specs().size()));
  LateArguments arguments;
  TERRACE_ASSIGN_OR_RETURN(arguments.groups,
                           AdamOfEach(groups, numbers, home_.options()));
  arguments.loss_scale = loss_scale;
  arguments.retry = "optimizer.flush()";
  absl::Status status = GuardedCopies([&]() -> absl::Status {
    TERRACE_RETURN_IF_ERROR(norm_gradients_.Gather(everything));
    const StepSource from = home_.Source(parameters);
    TERRACE_RETURN_IF_ERROR(
        home_.gathered().Gather(from, AreStepped(groups), /*goes_on=*/false));
    return home_.gathered().Release(from, &arguments);
  });
  arguments.norm_gradients = norm_gradients_.data();
  if (status.ok()) status = home_.late()->Begin(std::move(arguments));
  norm_gradients_.Clear();
  if (home_.late()->HasStep()) return status;
  home_.EndStep();
  if (status.ok()) home_.CountStep();
  return status;
}

Outcome StepBinding::Flush() {
  return home_.Locked([&] { return home_.SettleLate(Late::kTryAgain); });
}

Outcome StepBinding::Settle() {
  if (!home_.CheckProcess().ok()) return ToOutcome(absl::OkStatus());
  return home_.Locked([&] { return home_.SettleLate(Late::kTell); });
}

Outcome StepBinding::AwaitUpdates(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return ToOutcome(absl::OkStatus());
  return ToOutcome(OperationNet::Get().Await(tensor.storage(),
                                             /*is_written=*/true));
}

Outcome StepBinding::AwaitAllUpdates() {
  if (OperationGate* const gate = OperationNet::Get().gate()) {
    gate->AwaitEverything();
  }
  return ToOutcome(absl::OkStatus());
}

Outcome StepBinding::BeginGradual(const std::vector<at::Tensor>& parameters,
                                  const at::Tensor& group_of,
                                  const std::vector<double>& numbers,
                                  const std::vector<int64_t>& order) {
  return home_.Locked(
      [&] { return StartGradual(parameters, group_of, numbers, order); });
}

absl::Status StepBinding::StartGradual(
    const std::vector<at::Tensor>& parameters, const at::Tensor& group_of,
    const std::vector<double>& numbers, const std::vector<int64_t>& order) {
  TERRACE_RETURN_IF_ERROR(home_.CheckOpen());
  home_.gradual().reset();
  TERRACE_ASSIGN_OR_RETURN(const absl::Span<const int64_t> groups,
                           GroupsIn(group_of, home_.specs().size()));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<AdamOptions> adam,
                           AdamOfEach(groups, numbers, home_.options()));
  absl::Status status = GuardedCopies([&] {
    return home_.gathered().GatherParameters(home_.Source(parameters),
                                             AreStepped(groups));
  });
  if (status.ok()) {
    StepArguments arguments;
    arguments.groups = adam;
    const std::vector<int> places(order.begin(), order.end());
    auto begun = home_.optimizer()->StartGradual(
        arguments, home_.gathered().data(), places);
    status = begun.status();
    if (begun.ok()) home_.gradual() = *std::move(begun);
  }
  if (!status.ok()) home_.EndStep();
  return status;
}

Outcome StepBinding::Supply(int64_t place, const at::Tensor& parameter) {
  return home_.Locked([&] { return SupplyOne(place, parameter); });
}

absl::Status StepBinding::SupplyOne(int64_t place,
                                    const at::Tensor& parameter) {
  if (home_.gradual() == nullptr) return NoneBegan();
  const std::vector<ParameterSpec>& specs = home_.specs();
  const auto index = static_cast<size_t>(place);
  if (place < 0 || index >= specs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a gradient of parameter ", place, " of ", specs.size()));
  }
  GradientData gradient;
  absl::Status status = GuardedCopies([&]() -> absl::Status {
    TERRACE_ASSIGN_OR_RETURN(gradient, home_.gathered().TakeGradient(
                                           home_.Source({}), index, parameter));
    return absl::OkStatus();
  });
  if (status.ok()) {
    status = home_.gradual()->Supply(static_cast<int>(place), gradient.values,
                                     gradient.dtype);
  }
  return AfterSupply(std::move(status));
}

absl::Status StepBinding::AfterSupply(absl::Status status) {
  std::vector<int> stepped;
  home_.gradual()->TakeStepped(&stepped);
  for (const int parameter : stepped) {
    home_.gathered().DropGradient(home_.Source({}),
                                  static_cast<size_t>(parameter));
  }
  return status;
}

Outcome StepBinding::EndSupply() {
  return home_.Locked([&] {
    return home_.gradual() == nullptr
               ? NoneBegan()
               : AfterSupply(home_.gradual()->EndSupply());
  });
}

Outcome StepBinding::FinishGradual() {
  return home_.Locked([&] { return EndGradual(); });
}

absl::Status StepBinding::EndGradual() {
  if (home_.gradual() == nullptr) return NoneBegan();
  const absl::Status status =
      home_.gradual()->Finish(absl::Now() + kStepPatience);
  home_.gradual().reset();
  const absl::Status returned =
      Guarded(c10::kCPU, [&] { home_.gathered().Return(true, false); });
  home_.EndStep();
  TERRACE_RETURN_IF_ERROR(status);
  if (!returned.ok()) return NotReturned(returned);
  home_.CountStep();
  return absl::OkStatus();
}

Outcome StepBinding::GiveUpGradual(const std::string& why) {
  return home_.Locked([&] {
    if (home_.gradual() == nullptr) return absl::OkStatus();
    home_.gradual()->GiveUp(why);
    home_.gradual().reset();
    home_.EndStep();
    return absl::OkStatus();
  });
}

bool StepBinding::Skipped() {
  bool skipped = false;
  home_.Locked([&] {
    // A late step that is under way has updates, so that it is none.
    const bool is_late = home_.late() != nullptr && home_.late()->HasStep();
    skipped = !is_late && home_.optimizer() != nullptr &&
              home_.optimizer()->last_report().skipped;
    return absl::OkStatus();
  });
  return skipped;
}

bool StepBinding::Incomplete() {
  bool incomplete = false;
  home_.Locked([&] {
    home_.SettleLate(Late::kQuietly).IgnoreError();
    incomplete =
        home_.optimizer() != nullptr && home_.optimizer()->incomplete();
    return absl::OkStatus();
  });
  return incomplete;
}

}  // namespace terrace
