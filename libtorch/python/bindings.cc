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
#include "libtorch/python/zero_config_binding.h"
#include "terrace/machine.h"
#include "terrace/tier.h"
#include "terrace/version.h"

namespace {

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
  m.class_<OffloadBinding>("Offload")
      .def(::torch::init<>())
      .def("open", &OffloadBinding::Open)
      .def("manage", &OffloadBinding::Manage)
      .def("manage_gradient", &OffloadBinding::ManageGradient)
      .def("has", &OffloadBinding::Has)
      .def("storage", &OffloadBinding::Storage)
      .def("uses", &OffloadBinding::Uses)
      .def("forget_tensor", &OffloadBinding::ForgetTensor)
      .def("note_tensor", &OffloadBinding::NoteTensor)
      .def("exchange_memory", &OffloadBinding::ExchangeMemory)
      .def("lease", &OffloadBinding::MakeLease)
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

}  // namespace

TORCH_LIBRARY(terrace, m) {
  using terrace::MappedFileBinding;
  using terrace::OptimizerBinding;
  using terrace::ZeroConfigBinding;
  m.class_<MappedFileBinding>("MappedFile")
      .def(::torch::init<>())
      .def("open", &MappedFileBinding::Open)
      .def("take", &MappedFileBinding::Take);
  DefineOffload(m);  // before what takes one
  m.class_<OptimizerBinding>("Optimizer")
      .def(::torch::init<>())
      .def("check", &OptimizerBinding::Check)
      .def("open", &OptimizerBinding::Open)
      .def("add", &OptimizerBinding::Add)
      .def("check_apart", &OptimizerBinding::CheckApart)
      .def("step", &OptimizerBinding::Step)
      .def("step_late", &OptimizerBinding::StepLate)
      .def("flush", &OptimizerBinding::Flush)
      .def("settle", &OptimizerBinding::Settle)
      .def_static("await_updates", &OptimizerBinding::AwaitUpdates)
      .def("begin_gradual", &OptimizerBinding::BeginGradual)
      .def("supply", &OptimizerBinding::Supply)
      .def("end_supply", &OptimizerBinding::EndSupply)
      .def("finish_gradual", &OptimizerBinding::FinishGradual)
      .def("give_up_gradual", &OptimizerBinding::GiveUpGradual)
      .def("skipped", &OptimizerBinding::Skipped)
      .def("incomplete", &OptimizerBinding::Incomplete)
      .def("copy_states", &OptimizerBinding::CopyStates)
      .def("read", &OptimizerBinding::Read)
      .def("end_reading", &OptimizerBinding::EndReading)
      .def("write", &OptimizerBinding::Write)
      .def("edit", &OptimizerBinding::Edit)
      .def("forget", &OptimizerBinding::Forget)
      .def("steps", &OptimizerBinding::Steps)
      .def("set_steps", &OptimizerBinding::SetSteps)
      .def("reset", &OptimizerBinding::Reset)
      .def("save", &OptimizerBinding::Save)
      .def("begin_save", &OptimizerBinding::BeginSave)
      .def("write_part", &OptimizerBinding::WritePart)
      .def("commit_save", &OptimizerBinding::CommitSave)
      .def("end_save", &OptimizerBinding::EndSave)
      .def("begin_load", &OptimizerBinding::BeginLoad)
      .def("fits", &OptimizerBinding::Fits)
      .def("load", &OptimizerBinding::Load)
      .def("end_load", &OptimizerBinding::EndLoad)
      .def("waited_seconds", &OptimizerBinding::WaitedSeconds)
      .def("stats", &OptimizerBinding::Stats)
      .def("close", &OptimizerBinding::Close);
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
