#include "libtorch/step/gathered/groups.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/step/gathered/parameters.h"

namespace terrace {

using Group = ::torch::optim::OptimizerParamGroup;

absl::StatusOr<AdamOptions> ReadGroup(AdamMode mode, const Group& group,
                                      size_t position) {
  absl::StatusOr<AdamOptions> options = ReadGroupOptions(mode, group.options());
  if (options.ok()) return options;
  return absl::Status(options.status().code(),
                      absl::StrCat("parameter group ", position, " ",
                                   options.status().message()));
}

absl::StatusOr<std::vector<AdamOptions>> OptionsByPlace(
    AdamMode mode, bool bias_correction, const std::vector<Group>& groups,
    const KnownParameters& known) {
  std::vector<AdamOptions> all(known.tensors().size());
  for (size_t i = 0; i < groups.size(); ++i) {
    TERRACE_ASSIGN_OR_RETURN(AdamOptions options,
                             ReadGroup(mode, groups[i], i));
    options.bias_correction = bias_correction;
    for (const at::Tensor& parameter : groups[i].params()) {
      const int place = known.IndexOf(parameter);
      if (place >= 0) all[static_cast<size_t>(place)] = options;
    }
  }
  return all;
}

absl::Status CheckGroups(AdamMode mode, const std::vector<Group>& groups,
                         OffloadedTensors offloaded) {
  size_t position = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].has_options()) {
      TERRACE_RETURN_IF_ERROR(ReadGroup(mode, groups[i], i).status());
    }
    for (const at::Tensor& parameter : groups[i].params()) {
      TERRACE_RETURN_IF_ERROR(
          DescribeParameter(parameter, position, offloaded).status());
      ++position;
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace
