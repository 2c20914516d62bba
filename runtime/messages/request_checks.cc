#include "runtime/messages/request_checks.h"

#include <algorithm>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "terrace/byte_queue.h"

namespace terrace {

absl::Status CheckSpec(const TensorSpec& spec) {
  if (spec.step_number < -1 || spec.step_number > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", spec.name, "' with number ", spec.step_number,
        " in its step: they count from 0 to ", INT32_MAX, ", and -1 is none"));
  }
  if (!spec.name.empty() && spec.size_bytes > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", spec.name, "' of ", spec.size_bytes,
                   " bytes: a name and a positive size are needed"));
}

absl::Status CheckWants(absl::Span<const Want> wants, int slots,
                        int64_t slot_bytes,
                        absl::FunctionRef<int64_t(TensorId)> size_of) {
  if (wants.empty() || static_cast<int>(wants.size()) > slots) {
    return absl::InvalidArgumentError(absl::StrCat("a group of ", wants.size(),
                                                   " tensors; the window has ",
                                                   slots, " slots"));
  }
  absl::InlinedVector<int64_t, 16> ids;  // a queue of bytes may have thousands
  for (const Want& want : wants) {
    const TensorId tensor = want.tensor;
    const int64_t size_bytes = size_of(tensor);
    if (size_bytes < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("no tensor ", tensor.value));
    }
    if (size_bytes > slot_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.value, " has ", size_bytes,
                       " bytes; a slot holds ", slot_bytes));
    }
    ids.push_back(tensor.value);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice == ids.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", *twice, " twice in one group"));
}

absl::Status CheckLane(int lane) {
  if (lane >= 0 && lane < kMostLanes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("lane ", lane, " of a queue of bytes, which has ",
                   kMostLanes, " from 0 on"));
}

absl::Status CheckHeldBytes(int64_t bytes) {
  if (bytes >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("to hold at most ", bytes, " bytes"));
}

absl::Status CheckStepBegins(std::optional<int64_t> open) {
  if (!open.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("step ", *open, " is still open"));
}

absl::Status CheckStepEnds(std::optional<int64_t> open,
                           std::optional<int64_t> named) {
  if (!open.has_value()) {
    return absl::FailedPreconditionError("no step is open");
  }
  if (!named.has_value() || *named == *open) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("step ", *open, " is open, not step ", *named));
}

}  // namespace terrace
