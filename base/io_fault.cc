#include "base/io_fault.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

// "<errno> <offset> <path>": the path is last, as it may hold anything.
constexpr char kType[] = "terrace/io-fault";

bool TakeNumber(absl::string_view* text, int64_t* number) {
  const size_t end = text->find(' ');
  if (end == absl::string_view::npos ||
      !absl::SimpleAtoi(text->substr(0, end), number)) {
    return false;
  }
  text->remove_prefix(end + 1);
  return true;
}

}  // namespace

absl::Status WithIoFault(absl::Status status, const IoFault& fault) {
  if (status.ok()) return status;
  IoFault merged = IoFaultOf(status);
  if (merged.error == 0) merged.error = fault.error;
  if (merged.path.empty()) merged.path = fault.path;
  // An offset is in the file of its path.
  if (merged.offset == IoFault::kNoOffset &&
      (fault.path.empty() || fault.path == merged.path)) {
    merged.offset = fault.offset;
  }
  status.SetPayload(
      kType, absl::Cord(absl::StrCat(merged.error, " ", merged.offset, " ",
                                     merged.path)));
  return status;
}

IoFault IoFaultOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kType);
  if (!payload) return {};
  const std::string text(*payload);
  absl::string_view rest = text;
  int64_t error = 0, offset = 0;
  if (!TakeNumber(&rest, &error) || !TakeNumber(&rest, &offset)) return {};
  return {static_cast<int>(error), std::string(rest), offset};
}

absl::Status Reworded(const absl::Status& status, absl::string_view message) {
  return Reworded(status, status.code(), message);
}

absl::Status Reworded(const absl::Status& status, absl::StatusCode code,
                      absl::string_view message) {
  absl::Status result(code, message);
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    result.SetPayload(type, payload);
  });
  return result;
}

}  // namespace terrace
