#include "optimizer/chunks/adam_check.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace terrace {

absl::Status CheckAdamOptions(const AdamOptions& options,
                              absl::string_view what) {
  const auto bad = [what](const char* name, double value) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", name, " is ", value));
  };
  // Written so that a NaN is bad.
  if (!std::isfinite(options.learning_rate)) {
    return bad("learning_rate", options.learning_rate);
  }
  if (!(options.beta1 >= 0 && options.beta1 < 1)) {
    return bad("beta1", options.beta1);
  }
  if (!(options.beta2 >= 0 && options.beta2 < 1)) {
    return bad("beta2", options.beta2);
  }
  if (!(options.epsilon >= 0) || !std::isfinite(options.epsilon)) {
    return bad("epsilon", options.epsilon);
  }
  if (!(options.weight_decay >= 0) || !std::isfinite(options.weight_decay)) {
    return bad("weight_decay", options.weight_decay);
  }
  return absl::OkStatus();
}

}  // namespace terrace
