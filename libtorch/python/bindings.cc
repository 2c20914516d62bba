// torch.classes.terrace.Optimizer, .Offload and what torch.ops.terrace says of
// this build. Loading registers these and does nothing else.
#include <torch/custom_class.h>
#include <torch/library.h>

#include <string>
#include <tuple>

#include "libtorch/python/backward_graph.h"
#include "libtorch/python/mapped_file.h"
#include "libtorch/python/offload_binding.h"
#include "libtorch/python/optimizer_binding.h"
#include "libtorch/python/ranks/exchange_binding.h"
#include "libtorch/python/weights_binding.h"
#include "libtorch/python/zero_config_binding.h"
#include "terrace/machine.h"
#include "terrace/tier.h"
#include "terrace/version.h"

namespace {

using terrace::CheckpointBinding;
using terrace::OptimizerBinding;
using terrace::StateBinding;
using terrace::StepBinding;

// Kind, place, budget in bytes, and what is wrong with the text; of the first
// and the last one is empty.
std::tuple<std::string, std::string, int64_t, std::string> ParseTierText(
    std::string text) {
  const absl::StatusOr<terrace::TierSpec> tier = terrace::ParseTier(text);
  if (!tier.ok()) return {"", "", 0, std::string(tier.status().message())};
  return {terrace::TierKindName(tier->kind), tier->place, tier->budget_bytes,
          ""};
}

void DefineOffload(::torch::Library& m) {
  using terrace::LeaseBinding;
  using terrace::OffloadBinding;
  m.class_<LeaseBinding>("Lease").def("end", &LeaseBinding::End);
  using terrace::PlacementBinding;
  m.class_<PlacementBinding>("Placement").def("end", &PlacementBinding::End);
  m.class_<OffloadBinding>("Offload")
      .def(::torch::init<>())
      .def("open", &OffloadBinding::Open)
      .def("manage", &OffloadBinding::Manage)
      .def("manage_gradient", &OffloadBinding::ManageGradient)
      .def("manage_shard_gradient", &OffloadBinding::ManageShardGradient)
      .def("has", &OffloadBinding::Has)
      .def("storage", &OffloadBinding::Storage)
      .def("uses", &OffloadBinding::Uses)
      .def("exchange_memory", &OffloadBinding::ExchangeMemory)
      .def("lease", &OffloadBinding::MakeLease)
      .def("begin_placement", &OffloadBinding::BeginPlacement)
      .def("give_address", &OffloadBinding::GiveAddress)
      .def("save_activation", &OffloadBinding::SaveActivation)
      .def("use_activation", &OffloadBinding::UseActivation)
      .def("prefetch", &OffloadBinding::Prefetch)
      .def("begin_step", &OffloadBinding::BeginStep)
      .def("retry", &OffloadBinding::Retry)
      .def("error", &OffloadBinding::Error)
      .def("over_budget", &OffloadBinding::OverBudget)
      .def("stats", &OffloadBinding::Stats)
      .def("close", &OffloadBinding::Close)
      .def("is_closed", &OffloadBinding::IsClosed)
      .def("end", &OffloadBinding::End);
}

// A method of one of the optimizer's parts, as a method of the optimizer.
template <auto kMethod>
struct OfPart;
template <typename Part, typename Answer, typename... Arguments,
          Answer (Part::*kMethod)(Arguments...)>
struct OfPart<kMethod> {
  static auto Bind(Part& (OptimizerBinding::*part)()) {
    return [part](const c10::intrusive_ptr<OptimizerBinding>& optimizer,
                  Arguments... arguments) -> Answer {
      return ((*optimizer.*part)().*kMethod)(arguments...);
    };
  }
};
template <auto kMethod, typename Part>
auto Of(Part& (OptimizerBinding::*part)()) {
  return OfPart<kMethod>::Bind(part);
}

void DefineOptimizer(::torch::Library& m) {
  m.class_<OptimizerBinding>("Optimizer")
      .def(::torch::init<>())
      .def("check", &OptimizerBinding::Check)
      .def("open", &OptimizerBinding::Open)
      .def("add", &OptimizerBinding::Add)
      .def("check_apart", &OptimizerBinding::CheckApart)
      .def("step", Of<&StepBinding::Step>(&OptimizerBinding::steps))
      .def("step_late", Of<&StepBinding::StepLate>(&OptimizerBinding::steps))
      .def("flush", Of<&StepBinding::Flush>(&OptimizerBinding::steps))
      .def("settle", Of<&StepBinding::Settle>(&OptimizerBinding::steps))
      .def_static("await_updates", &StepBinding::AwaitUpdates)
      .def_static("await_all_updates", &StepBinding::AwaitAllUpdates)
      .def("begin_gradual",
           Of<&StepBinding::BeginGradual>(&OptimizerBinding::steps))
      .def("supply", Of<&StepBinding::Supply>(&OptimizerBinding::steps))
      .def("end_supply", Of<&StepBinding::EndSupply>(&OptimizerBinding::steps))
      .def("finish_gradual",
           Of<&StepBinding::FinishGradual>(&OptimizerBinding::steps))
      .def("give_up_gradual",
           Of<&StepBinding::GiveUpGradual>(&OptimizerBinding::steps))
      .def("skipped", Of<&StepBinding::Skipped>(&OptimizerBinding::steps))
      .def("incomplete", Of<&StepBinding::Incomplete>(&OptimizerBinding::steps))
      .def("copy_states",
           Of<&StateBinding::CopyStates>(&OptimizerBinding::state))
      .def("read", Of<&StateBinding::Read>(&OptimizerBinding::state))
      .def("end_reading",
           Of<&StateBinding::EndReading>(&OptimizerBinding::state))
      .def("write", Of<&StateBinding::Write>(&OptimizerBinding::state))
      .def("edit", Of<&StateBinding::Edit>(&OptimizerBinding::state))
      .def("forget", Of<&StateBinding::Forget>(&OptimizerBinding::state))
      .def("steps", Of<&StateBinding::Steps>(&OptimizerBinding::state))
      .def("set_steps", Of<&StateBinding::SetSteps>(&OptimizerBinding::state))
      .def("reset", Of<&StateBinding::Reset>(&OptimizerBinding::state))
      .def("save", Of<&CheckpointBinding::Save>(&OptimizerBinding::checkpoints))
      .def("begin_save",
           Of<&CheckpointBinding::BeginSave>(&OptimizerBinding::checkpoints))
      .def("write_part",
           Of<&CheckpointBinding::WritePart>(&OptimizerBinding::checkpoints))
      .def("commit_save",
           Of<&CheckpointBinding::CommitSave>(&OptimizerBinding::checkpoints))
      .def("end_save",
           Of<&CheckpointBinding::EndSave>(&OptimizerBinding::checkpoints))
      .def("begin_load",
           Of<&CheckpointBinding::BeginLoad>(&OptimizerBinding::checkpoints))
      .def("fits", Of<&CheckpointBinding::Fits>(&OptimizerBinding::checkpoints))
      .def("load", Of<&CheckpointBinding::Load>(&OptimizerBinding::checkpoints))
      .def("end_load",
           Of<&CheckpointBinding::EndLoad>(&OptimizerBinding::checkpoints))
      .def("waited_seconds", &OptimizerBinding::WaitedSeconds)
      .def("stats", &OptimizerBinding::Stats)
      .def("close", &OptimizerBinding::Close);
}

void DefineExchange(::torch::Library& m) {
  using terrace::ExchangeBinding;
  m.class_<ExchangeBinding>("Exchange")
      .def(::torch::init<>())
      .def("begin", &ExchangeBinding::Begin)
      .def("wait", &ExchangeBinding::Wait)
      .def("retry", &ExchangeBinding::Retry)
      .def("end", &ExchangeBinding::End)
      .def("failed_rank", &ExchangeBinding::FailedRank)
      .def("order", &ExchangeBinding::Order)
      .def("bytes", &ExchangeBinding::Bytes);
}

}  // namespace

TORCH_LIBRARY(terrace, m) {
  using terrace::MappedFileBinding;
  using terrace::WeightsBinding;
  using terrace::ZeroConfigBinding;
  m.class_<MappedFileBinding>("MappedFile")
      .def(::torch::init<>())
      .def("open", &MappedFileBinding::Open)
      .def("take", &MappedFileBinding::Take);
  DefineOffload(m);  // before what takes one
  DefineOptimizer(m);
  DefineExchange(m);
  m.class_<WeightsBinding>("Weights")
      .def_static("find", &WeightsBinding::Find)
      .def_static("read_index", &WeightsBinding::ReadIndex);
  m.class_<ZeroConfigBinding>("ZeroConfig")
      .def(::torch::init<>())
      .def("open", &ZeroConfigBinding::Open)
      .def("describe", &ZeroConfigBinding::Describe)
      .def("plan", &ZeroConfigBinding::Plan)
      .def("adam_at", &ZeroConfigBinding::AdamOfStep);
  m.def("parse_tier(str text) -> (str, str, int, str)", &ParseTierText);
  m.def("python_functions_in_backward() -> int",
        &terrace::PythonFunctionsInBackward);
  m.def("version() -> str", [] { return std::string(terrace::kVersion); });
  m.def("instruction_set() -> str", &terrace::InstructionSetName);
}
