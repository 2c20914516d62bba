#include "libtorch/python/state_binding.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"

namespace terrace {
namespace {

using Late = OptimizerHome::Late;

// Of each array on its way into a file: 1 MiB.
constexpr int64_t kRange = 1 << 18;

absl::Span<float> Elements(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<float>(),
          static_cast<size_t>(tensor.numel())};
}

// Copies of one parameter's state, made and filled. Those that are not wanted,
// or not there, are undefined.
class StateCopy {
 public:
  // The buffer, of three ranges, is in front of a file; null: in memory.
  StateCopy(int place, const at::Tensor& parameter, MappedFile* file,
            const at::Tensor& buffer)
      : place_(place), parameter_(parameter), file_(file), buffer_(buffer) {}

  absl::Status Make(bool has_master_array, bool has_master);
  absl::Status Fill(StateReader& reader);

  at::Tensor master, first_moment, second_moment;

 private:
  absl::StatusOr<at::Tensor> MakeOne() const;
  absl::Status FillRange(StateReader& reader, int64_t first, int64_t count);
  absl::Status FillFromParameter();

  const int place_;
  const at::Tensor& parameter_;
  MappedFile* const file_;
  const at::Tensor& buffer_;
  bool reads_master_ = false;
};

absl::StatusOr<at::Tensor> StateCopy::MakeOne() const {
  if (file_ != nullptr) return file_->Take(parameter_.sizes());
  return at::empty(parameter_.sizes(), at::TensorOptions(at::kFloat));
}

absl::Status StateCopy::Make(bool has_master_array, bool has_master) {
  if (has_master_array) {
    TERRACE_ASSIGN_OR_RETURN(master, MakeOne());
    reads_master_ = has_master;
  }
  TERRACE_ASSIGN_OR_RETURN(first_moment, MakeOne());
  TERRACE_ASSIGN_OR_RETURN(second_moment, MakeOne());
  return absl::OkStatus();
}

absl::Status StateCopy::Fill(StateReader& reader) {
  if (master.defined() && !reads_master_) {
    TERRACE_RETURN_IF_ERROR(FillFromParameter());
  }
  if (file_ == nullptr) {
    StateSpans spans = {.first_moment = Elements(first_moment),
                        .second_moment = Elements(second_moment)};
    if (reads_master_) spans.master = Elements(master);
    return reader.Read(place_, 0, spans, absl::Now() + kTransferPatience);
  }
  const int64_t count = parameter_.numel();
  for (int64_t first = 0; first < count; first += kRange) {
    TERRACE_RETURN_IF_ERROR(
        FillRange(reader, first, std::min(kRange, count - first)));
  }
  return absl::OkStatus();
}

absl::Status StateCopy::FillRange(StateReader& reader, int64_t first,
                                  int64_t count) {
  const auto part = [&](int row) {
    return Elements(buffer_[row]).first(static_cast<size_t>(count));
  };
  StateSpans spans = {.first_moment = part(1), .second_moment = part(2)};
  if (reads_master_) spans.master = part(0);
  TERRACE_RETURN_IF_ERROR(
      reader.Read(place_, first, spans, absl::Now() + kTransferPatience));
  if (reads_master_) {
    TERRACE_RETURN_IF_ERROR(file_->Write(master, first, spans.master));
  }
  TERRACE_RETURN_IF_ERROR(
      file_->Write(first_moment, first, spans.first_moment));
  return file_->Write(second_moment, first, spans.second_moment);
}

// As the next step makes a master.
absl::Status StateCopy::FillFromParameter() {
  const at::Tensor elements = parameter_.detach().reshape({-1});
  if (file_ == nullptr) {
    master.view({-1}).copy_(elements);
    return absl::OkStatus();
  }
  for (int64_t first = 0; first < elements.numel(); first += kRange) {
    const int64_t count = std::min(kRange, elements.numel() - first);
    const at::Tensor part =
        elements.slice(0, first, first + count).to(at::kCPU, at::kFloat);
    TERRACE_RETURN_IF_ERROR(file_->Write(master, first, Elements(part)));
  }
  return absl::OkStatus();
}

// What users write into the state between steps.
absl::Status EditOne(OffloadedOptimizer& optimizer, int64_t parameter,
                     OffloadedOptimizer::StateKind kind,
                     const at::Tensor& values) {
  if (values.numel() == 0) return absl::OkStatus();
  if (values.scalar_type() != at::kFloat || !values.device().is_cpu() ||
      !values.is_contiguous()) {
    return absl::InvalidArgumentError(
        "state is contiguous float32 elements in CPU memory");
  }
  return optimizer.WriteState(
      static_cast<int>(parameter), kind, 0,
      absl::MakeConstSpan(values.const_data_ptr<float>(),
                          static_cast<size_t>(values.numel())),
      absl::Now() + kTransferPatience);
}

}  // namespace

std::tuple<Outcome, std::vector<at::Tensor>> StateBinding::CopyStates(
    const std::vector<int64_t>& indices,
    const std::vector<at::Tensor>& parameters,
    const std::optional<c10::intrusive_ptr<MappedFileBinding>>& file) {
  std::vector<at::Tensor> copies;
  const auto copied = home_.Locked([&] {
    MappedFile* const mapped = file.has_value() ? (*file)->file() : nullptr;
    return CopyAll(indices, parameters, mapped, copies);
  });
  if (std::get<0>(copied) != 0) copies.clear();
  return {copied, std::move(copies)};
}

absl::Status StateBinding::CopyAll(const std::vector<int64_t>& indices,
                                   const std::vector<at::Tensor>& parameters,
                                   MappedFile* file,
                                   std::vector<at::Tensor>& copies) {
  const at::NoGradGuard without_graph;
  TERRACE_RETURN_IF_ERROR(home_.CheckOpen());
  if (indices.size() != parameters.size()) {
    return absl::InvalidArgumentError("an index a parameter");
  }
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<StateReader> reader,
                           home_.optimizer()->OpenStateReader());
  copies.reserve(indices.size() * 4);
  // One for all: of one for each parameter the allocator keeps many.
  at::Tensor buffer;
  absl::Status status;
  if (file != nullptr) {
    status.Update(Guarded(c10::kCPU, [&] {
      buffer = at::empty({3, kRange}, at::TensorOptions(at::kFloat));
    }));
  }
  for (size_t i = 0; i < indices.size() && status.ok(); ++i) {
    // There may be no memory for a copy.
    absl::Status copied;
    status.Update(Guarded(c10::kCPU, [&] {
      copied =
          CopyOne(indices[i], parameters[i], *reader, file, buffer, copies);
    }));
    status.Update(copied);
  }
  return status;
}

absl::Status StateBinding::CopyOne(int64_t index, const at::Tensor& parameter,
                                   StateReader& reader, MappedFile* file,
                                   const at::Tensor& buffer,
                                   std::vector<at::Tensor>& copies) {
  using Kind = OffloadedOptimizer::StateKind;
  const std::vector<ParameterSpec>& specs = home_.specs();
  const auto at = static_cast<size_t>(index);
  if (index < 0 || at >= specs.size() || parameter.numel() != specs[at].count) {
    return absl::InvalidArgumentError(
        absl::StrCat("no parameter ", index, " of ", parameter.numel(),
                     " elements is stepped here"));
  }
  const auto place = static_cast<int>(index);
  const int64_t steps = home_.optimizer()->parameter_steps()[at];
  copies.push_back(at::scalar_tensor(static_cast<double>(steps),
                                     at::TensorOptions(at::kFloat)));
  StateCopy copy(place, parameter, file, buffer);
  TERRACE_RETURN_IF_ERROR(
      copy.Make(specs[at].dtype != DType::kFloat32,
                home_.optimizer()->HasState(place, Kind::kMaster)));
  TERRACE_RETURN_IF_ERROR(copy.Fill(reader));
  if (copy.master.defined()) copies.push_back(std::move(copy.master));
  copies.push_back(std::move(copy.first_moment));
  copies.push_back(std::move(copy.second_moment));
  return absl::OkStatus();
}

Outcome StateBinding::Read(int64_t parameter, int64_t offset,
                           const at::Tensor& master,
                           const at::Tensor& first_moment,
                           const at::Tensor& second_moment) {
  return home_.Locked([&]() -> absl::Status {
    TERRACE_RETURN_IF_ERROR(home_.CheckNotClosed());
    return home_.transfer().Read(*home_.optimizer(), parameter, offset, master,
                                 first_moment, second_moment);
  });
}

void StateBinding::EndReading() {
  home_.Locked([this] {
    home_.transfer().EndReading();
    return absl::OkStatus();
  });
}

Outcome StateBinding::Write(int64_t parameter, int64_t offset,
                            const at::Tensor& master,
                            const at::Tensor& first_moment,
                            const at::Tensor& second_moment) {
  return home_.Locked([&]() -> absl::Status {
    home_.GiveUpLate();
    TERRACE_RETURN_IF_ERROR(home_.CheckNotClosed());
    return home_.transfer().Write(*home_.optimizer(), parameter, offset, master,
                                  first_moment, second_moment);
  });
}

Outcome StateBinding::Edit(int64_t parameter, const at::Tensor& master,
                           const at::Tensor& first_moment,
                           const at::Tensor& second_moment) {
  using Kind = OffloadedOptimizer::StateKind;
  const std::pair<Kind, const at::Tensor*> given[] = {
      {Kind::kMaster, &master},
      {Kind::kFirstMoment, &first_moment},
      {Kind::kSecondMoment, &second_moment}};
  return home_.Locked([&]() -> absl::Status {
    TERRACE_RETURN_IF_ERROR(home_.CheckOpen());
    for (const auto& [kind, values] : given) {
      TERRACE_RETURN_IF_ERROR(
          EditOne(*home_.optimizer(), parameter, kind, *values));
    }
    return absl::OkStatus();
  });
}

Outcome StateBinding::Forget(const std::vector<int64_t>& parameters) {
  return home_.Locked([&]() -> absl::Status {
    TERRACE_RETURN_IF_ERROR(home_.CheckOpen());
    for (const int64_t parameter : parameters) {
      TERRACE_RETURN_IF_ERROR(
          home_.optimizer()->ForgetState(static_cast<int>(parameter)));
    }
    return absl::OkStatus();
  });
}

std::vector<int64_t> StateBinding::Steps() {
  std::vector<int64_t> steps;
  home_.Locked([&] {
    home_.SettleLate(Late::kQuietly).IgnoreError();
    if (home_.optimizer() != nullptr) {
      const auto counts = home_.optimizer()->parameter_steps();
      steps.assign(counts.begin(), counts.end());
    }
    return absl::OkStatus();
  });
  return steps;
}

Outcome StateBinding::SetSteps(int64_t step,
                               const std::vector<int64_t>& steps) {
  return home_.Locked([&]() -> absl::Status {
    TERRACE_RETURN_IF_ERROR(home_.CheckNotClosed());
    return home_.transfer().SetSteps(*home_.optimizer(), step, steps);
  });
}

Outcome StateBinding::Reset() {
  return home_.Locked([&]() -> absl::Status {
    home_.GiveUpLate();
    TERRACE_RETURN_IF_ERROR(home_.CheckOpen());
    TERRACE_RETURN_IF_ERROR(
        home_.optimizer()->Reset(absl::Now() + kTransferPatience));
    home_.transfer().Renew();
    return absl::OkStatus();
  });
}

}  // namespace terrace
