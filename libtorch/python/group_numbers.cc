#include "libtorch/python/group_numbers.h"

#include "absl/strings/str_cat.h"
#include "libtorch/python/tensors.h"

namespace terrace {
namespace {

constexpr size_t kNumbersPerGroup = 7;

AdamOptions AdamOf(const double* numbers, const BindingOptions& options) {
  AdamOptions adam;
  adam.learning_rate = numbers[0];
  adam.beta1 = numbers[1];
  adam.beta2 = numbers[2];
  adam.epsilon = numbers[3];
  adam.weight_decay = numbers[4];
  adam.decoupled_decay = numbers[5] != 0;
  adam.maximize = numbers[6] != 0;
  adam.bias_correction = options.bias_correction;
  return adam;
}

}  // namespace

absl::StatusOr<absl::Span<const int64_t>> GroupsIn(const at::Tensor& group_of,
                                                   size_t parameters) {
  if (group_of.scalar_type() != at::kLong || !group_of.device().is_cpu() ||
      !group_of.is_contiguous() ||
      static_cast<size_t>(group_of.numel()) != parameters) {
    return absl::InvalidArgumentError(
        absl::StrCat("the groups are int64 in CPU memory, one for each of ",
                     parameters, " parameters"));
  }
  return absl::MakeConstSpan(group_of.const_data_ptr<int64_t>(), parameters);
}

absl::StatusOr<std::vector<AdamOptions>> AdamOfEach(
    absl::Span<const int64_t> group_of, const std::vector<double>& numbers,
    const BindingOptions& options) {
  std::vector<AdamOptions> groups;
  for (size_t i = 0; i + kNumbersPerGroup <= numbers.size();
       i += kNumbersPerGroup) {
    groups.push_back(AdamOf(numbers.data() + i, options));
  }
  std::vector<AdamOptions> each(group_of.size());
  for (size_t i = 0; i < each.size(); ++i) {
    if (group_of[i] == kInNoGroup) continue;
    const auto group = static_cast<size_t>(group_of[i]);
    if (group >= groups.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", i, " is in group ", group_of[i],
                       ", numbers are given for ", groups.size(), " groups"));
    }
    each[i] = groups[group];
  }
  return each;
}

}  // namespace terrace
