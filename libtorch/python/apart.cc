#include "absl/strings/str_cat.h"
#include "libtorch/guarded.h"
#include "libtorch/python/optimizer_binding.h"
#include "libtorch/tensor_check.h"

namespace terrace {

Outcome OptimizerBinding::CheckApart(const std::vector<at::Tensor>& parameters,
                                     const std::vector<std::string>& names) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  const auto name = [&names](size_t i) {
    return names.empty() ? absl::StrCat(i) : absl::StrCat("'", names[i], "'");
  };
  if (!names.empty() && names.size() != parameters.size()) {
    return ToOutcome(absl::InvalidArgumentError("a name for each parameter"));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string fault =
        StorageFault(parameters[i], OffloadedTensors::kTaken);
    if (fault.empty()) continue;
    return ToOutcome(absl::InvalidArgumentError(
        absl::StrCat("parameter ", name(i), " ", fault)));
  }
  MutexLock lock(mutex_);
  absl::Status status;
  status.Update(Guarded(c10::kCPU, [&] {
    if (const auto overlap = apart_.FindOverlap(parameters)) {
      status = OverlapError(name(overlap->first), name(overlap->second));
    }
  }));
  return ToOutcome(status);
}

}  // namespace terrace
