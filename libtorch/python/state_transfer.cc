#include "libtorch/python/state_transfer.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

absl::Status CutOff() {
  return absl::FailedPreconditionError(
      "another use of the optimizer ended the load of its state half-way; "
      "load it again");
}

absl::StatusOr<absl::Span<float>> Floats(const at::Tensor& tensor,
                                         int64_t count) {
  if (tensor.scalar_type() != at::kFloat || !tensor.device().is_cpu() ||
      !tensor.is_contiguous() || tensor.numel() != count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "state is ", count, " contiguous float32 elements in CPU memory"));
  }
  return absl::MakeSpan(tensor.mutable_data_ptr<float>(),
                        static_cast<size_t>(count));
}

}  // namespace

void StateTransfer::End() {
  reader_.reset();
  if (writer_ != nullptr) cut_off_ = true;
  writer_.reset();
}

void StateTransfer::Leak() {
  static_cast<void>(reader_.release());
  static_cast<void>(writer_.release());
}

absl::Status StateTransfer::Read(OffloadedOptimizer& optimizer,
                                 int64_t parameter, int64_t offset,
                                 const at::Tensor& master,
                                 const at::Tensor& first_moment,
                                 const at::Tensor& second_moment) {
  StateSpans spans;
  TERRACE_ASSIGN_OR_RETURN(spans.master, Floats(master, master.numel()));
  TERRACE_ASSIGN_OR_RETURN(spans.first_moment,
                           Floats(first_moment, first_moment.numel()));
  TERRACE_ASSIGN_OR_RETURN(spans.second_moment,
                           Floats(second_moment, second_moment.numel()));
  if (reader_ == nullptr) {
    End();
    TERRACE_ASSIGN_OR_RETURN(reader_, optimizer.OpenStateReader());
  }
  return reader_->Read(static_cast<int>(parameter), offset, spans,
                       absl::Now() + kTransferPatience);
}

absl::Status StateTransfer::Write(OffloadedOptimizer& optimizer,
                                  int64_t parameter, int64_t offset,
                                  const at::Tensor& master,
                                  const at::Tensor& first_moment,
                                  const at::Tensor& second_moment) {
  if (cut_off_) return CutOff();
  const int64_t count = first_moment.numel();
  StateValues values;
  if (master.numel() > 0) {
    TERRACE_ASSIGN_OR_RETURN(values.master, Floats(master, count));
  }
  TERRACE_ASSIGN_OR_RETURN(values.first_moment, Floats(first_moment, count));
  TERRACE_ASSIGN_OR_RETURN(values.second_moment, Floats(second_moment, count));
  const Time deadline = absl::Now() + kTransferPatience;
  if (writer_ == nullptr) {
    End();
    TERRACE_ASSIGN_OR_RETURN(writer_, optimizer.OpenStateWriter(deadline));
  }
  return writer_->Write(static_cast<int>(parameter), offset, values, deadline);
}

absl::Status StateTransfer::SetSteps(OffloadedOptimizer& optimizer,
                                     int64_t step,
                                     const std::vector<int64_t>& steps) {
  if (cut_off_) return CutOff();
  if (writer_ == nullptr) {
    End();
    return optimizer.SetSteps(step, steps);
  }
  TERRACE_RETURN_IF_ERROR(writer_->Commit(step, steps));
  writer_.reset();
  return absl::OkStatus();
}

}  // namespace terrace
