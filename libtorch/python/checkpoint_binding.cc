#include "libtorch/python/checkpoint_binding.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "libtorch/step/late/update_net.h"
#include "libtorch/stored_dtypes.h"
#include "libtorch/tensor_check.h"
#include "libtorch/tensor_elements.h"

namespace terrace {
namespace {

constexpr absl::Duration kCheckpointPatience = absl::Hours(24);
constexpr char kRest[] = "python";  // the key of the block

// Tensors as a checkpoint wants them.
struct Described {
  std::vector<CheckpointTensor> tensors;
  std::vector<std::unique_ptr<TensorElements>> elements;
};

absl::Status TakeAddress(const at::Tensor& of, Described& described,
                         CheckpointTensor& tensor) {
  if (TensorElements::AreNeededFor(of)) {
    described.elements.push_back(std::make_unique<TensorElements>(of));
    tensor.elements = described.elements.back().get();
    return absl::OkStatus();
  }
  TERRACE_RETURN_IF_ERROR(UpdateNet::Get().Await(of.storage()));
  tensor.data = of.data_ptr();
  return absl::OkStatus();
}

// Whether a checkpoint is to read or write the tensors, or is only compared.
enum class Addresses : uint8_t { kTaken, kNone };

absl::StatusOr<Described> DescribeAll(const std::vector<at::Tensor>& tensors,
                                      const std::vector<std::string>& names,
                                      const std::vector<int64_t>& positions,
                                      Addresses addresses) {
  if (names.size() != tensors.size() || positions.size() != names.size()) {
    return absl::InvalidArgumentError(
        "a name and a position for each tensor of a checkpoint");
  }
  Described described;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::string fault = PlaceFault(tensors[i], OffloadedTensors::kTaken);
    const auto dtype =
        fault.empty() ? StoredDTypeOf(tensors[i].scalar_type()) : std::nullopt;
    if (fault.empty() && !dtype) {
      fault = absl::StrCat("is ", TextOf(tensors[i].scalar_type()),
                           ", which safetensors does not have");
    }
    if (!fault.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", names[i], "' ", fault));
    }
    CheckpointTensor tensor;
    tensor.name = names[i];
    tensor.dtype = *dtype;
    tensor.shape = tensors[i].sizes().vec();
    if (addresses == Addresses::kTaken) {
      TERRACE_RETURN_IF_ERROR(TakeAddress(tensors[i], described, tensor));
    }
    tensor.optimizer_parameter = static_cast<int>(positions[i]);
    described.tensors.push_back(std::move(tensor));
  }
  return described;
}

// For a save: no update goes on, and no state is on its way to or from tensors.
absl::StatusOr<Described> DescribeQuiet(OptimizerHome& home,
                                        const std::vector<at::Tensor>& tensors,
                                        const std::vector<std::string>& names,
                                        const std::vector<int64_t>& positions) {
  TERRACE_RETURN_IF_ERROR(home.SettleLate(OptimizerHome::Late::kTell));
  TERRACE_ASSIGN_OR_RETURN(
      Described described,
      DescribeAll(tensors, names, positions, Addresses::kTaken));
  home.transfer().End();
  return described;
}

CheckpointValues ValuesOf(const at::Tensor& rest) {
  const at::Tensor bytes = rest.contiguous();
  CheckpointValues values;
  // Not in the list, which would copy it once more.
  values[kRest] = CheckpointBytes{
      std::string(static_cast<const char*>(bytes.const_data_ptr()),
                  static_cast<size_t>(bytes.nbytes()))};
  return values;
}

}  // namespace

CheckpointBinding::~CheckpointBinding() {
  if (home_.CheckProcess().ok()) return;
  static_cast<void>(commit_.release());
  static_cast<void>(checkpoint_.release());
}

Outcome CheckpointBinding::Save(const std::string& directory,
                                const std::vector<at::Tensor>& tensors,
                                const std::vector<std::string>& names,
                                const std::vector<int64_t>& positions,
                                const at::Tensor& rest) {
  return home_.Locked([&]() -> absl::StatusOr<std::string> {
    const at::NoGradGuard without_graph;
    TERRACE_ASSIGN_OR_RETURN(const Described described,
                             DescribeQuiet(home_, tensors, names, positions));
    CheckpointContents contents;
    contents.values = ValuesOf(rest);
    contents.parameters = described.tensors;
    contents.optimizer = home_.optimizer();
    TERRACE_ASSIGN_OR_RETURN(
        const int64_t size,
        SaveCheckpoint(directory, contents, absl::Now() + kCheckpointPatience));
    return absl::StrCat(size);
  });
}

Outcome CheckpointBinding::BeginSave(const std::string& directory,
                                     const at::Tensor& rest) {
  return home_.Locked([&]() -> absl::Status {
    commit_.reset();
    TERRACE_ASSIGN_OR_RETURN(
        commit_, CheckpointCommit::Begin(directory, ValuesOf(rest)));
    return absl::OkStatus();
  });
}

Outcome CheckpointBinding::WritePart(const std::string& directory,
                                     const std::vector<at::Tensor>& tensors,
                                     const std::vector<std::string>& names,
                                     const std::vector<int64_t>& positions,
                                     bool parameters) {
  return home_.Locked([&]() -> absl::StatusOr<std::string> {
    const at::NoGradGuard without_graph;
    TERRACE_ASSIGN_OR_RETURN(const Described described,
                             DescribeQuiet(home_, tensors, names, positions));
    return WriteCheckpointPart(
        directory,
        {.parameters = described.tensors, .optimizer = home_.optimizer()},
        parameters ? CheckpointPart::kParametersAndState
                   : CheckpointPart::kState,
        absl::Now() + kCheckpointPatience);
  });
}

Outcome CheckpointBinding::CommitSave(const std::vector<std::string>& parts) {
  return home_.Locked([&]() -> absl::StatusOr<std::string> {
    if (commit_ == nullptr) {
      return absl::FailedPreconditionError("no save was begun");
    }
    const absl::StatusOr<int64_t> size = commit_->Commit(parts);
    commit_.reset();
    TERRACE_RETURN_IF_ERROR(size.status());
    return absl::StrCat(*size);
  });
}

void CheckpointBinding::EndSave() {
  home_.Locked([this] {
    commit_.reset();
    return absl::OkStatus();
  });
}

std::tuple<Outcome, at::Tensor> CheckpointBinding::BeginLoad(
    const std::string& directory) {
  at::Tensor rest = at::empty({0}, at::kByte);
  Outcome outcome = home_.Locked([&] { return Open(directory, rest); });
  return {std::move(outcome), rest};
}

absl::Status CheckpointBinding::Open(const std::string& directory,
                                     at::Tensor& rest) {
  checkpoint_.reset();
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                           Checkpoint::Open(directory));
  const auto found = checkpoint->values().find(kRest);
  if (found == checkpoint->values().end() ||
      !std::holds_alternative<CheckpointBytes>(found->second)) {
    return absl::InvalidArgumentError(absl::StrCat(
        directory, ": this checkpoint was not written by terrace.save"));
  }
  const std::string& bytes = std::get<CheckpointBytes>(found->second).value;
  rest = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(rest.mutable_data_ptr(), bytes.data(), bytes.size());
  checkpoint_ = std::move(checkpoint);
  return absl::OkStatus();
}

Outcome CheckpointBinding::Fits(const std::vector<at::Tensor>& tensors,
                                const std::vector<std::string>& names,
                                const std::vector<int64_t>& positions) {
  return home_.Locked([&] {
    home_.SettleLate(OptimizerHome::Late::kQuietly).IgnoreError();
    return CheckFits(tensors, names, positions);
  });
}

absl::Status CheckpointBinding::CheckFits(
    const std::vector<at::Tensor>& tensors,
    const std::vector<std::string>& names,
    const std::vector<int64_t>& positions) {
  if (checkpoint_ == nullptr) {
    return absl::FailedPreconditionError("no load was begun");
  }
  // Some may have an update that failed, which a load gives up: theirs are not
  // to be had before that.
  TERRACE_ASSIGN_OR_RETURN(
      const Described described,
      DescribeAll(tensors, names, positions, Addresses::kNone));
  return checkpoint_->Fits(described.tensors, home_.optimizer());
}

Outcome CheckpointBinding::Load(const std::vector<at::Tensor>& tensors,
                                const std::vector<std::string>& names,
                                const std::vector<int64_t>& positions) {
  return home_.Locked([&] {
    home_.transfer().End();
    home_.SettleLate(OptimizerHome::Late::kQuietly).IgnoreError();
    return LoadAll(tensors, names, positions);
  });
}

absl::Status CheckpointBinding::LoadAll(const std::vector<at::Tensor>& tensors,
                                        const std::vector<std::string>& names,
                                        const std::vector<int64_t>& positions) {
  TERRACE_RETURN_IF_ERROR(CheckFits(tensors, names, positions));
  const bool gave_up = home_.GiveUpLate();
  const at::NoGradGuard without_graph;
  const absl::StatusOr<Described> described =
      DescribeAll(tensors, names, positions, Addresses::kTaken);
  const Time deadline = absl::Now() + kCheckpointPatience;
  if (!described.ok()) {
    // No step goes on with one that was given up.
    if (gave_up) home_.optimizer()->Reset(deadline).IgnoreError();
    return described.status();
  }
  TERRACE_RETURN_IF_ERROR(
      checkpoint_->Load(described->tensors, home_.optimizer(), deadline));
  home_.transfer().Renew();
  for (const at::Tensor& tensor : tensors) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
  return absl::OkStatus();
}

void CheckpointBinding::EndLoad() {
  home_.Locked([this] {
    checkpoint_.reset();
    return absl::OkStatus();
  });
}

}  // namespace terrace
