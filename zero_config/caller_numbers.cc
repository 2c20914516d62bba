#include "zero_config/caller_numbers.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace terrace {
namespace {

struct CallerNumber {
  const char* name;
  const char* path;
  std::optional<double> value;
  size_t index = 0;  // in the list at the path
};

std::vector<CallerNumber> NumbersOf(const ZeroConfigCaller& caller) {
  const char* betas = "optimizer.params.betas";
  return {
      {"learning_rate", "optimizer.params.lr", caller.learning_rate},
      {"beta1", betas, caller.beta1},
      {"beta2", betas, caller.beta2, 1},
      {"epsilon", "optimizer.params.eps", caller.epsilon},
      {"weight_decay", "optimizer.params.weight_decay", caller.weight_decay},
      {"gradient_clipping", "gradient_clipping", caller.gradient_clipping},
      {"warmup_min_lr", "scheduler.params.warmup_min_lr", caller.warmup_min_lr},
      {"warmup_max_lr", "scheduler.params.warmup_max_lr", caller.warmup_max_lr},
      {"warmup_num_steps", "scheduler.params.warmup_num_steps",
       caller.warmup_num_steps},
      {"total_num_steps", "scheduler.params.total_num_steps",
       caller.total_num_steps},
  };
}

bool IsDefault(const ZeroConfigCaller& caller, absl::string_view name) {
  return caller.defaults.count(std::string(name)) > 0;
}

}  // namespace

bool FillsIn(const ZeroConfigCaller& caller, absl::string_view name,
             const KeyValues& values, absl::string_view path) {
  if (values.Given(path)) return false;
  return values.IsAuto(path) || !IsDefault(caller, name);
}

std::string Argument(absl::string_view name, double value) {
  return absl::StrCat(name, "=", absl::StrFormat("%.12g", value));
}

void NoteContradictions(const ZeroConfigCaller& caller, KeyValues* values) {
  for (const CallerNumber& number : NumbersOf(caller)) {
    if (!number.value || IsDefault(caller, number.name)) continue;
    const std::vector<double> text = values->Numbers(number.path);
    if (number.index >= text.size() || text[number.index] == *number.value) {
      continue;
    }
    values->AddNote(
        ZeroConfigNote::Kind::kContradicted, number.path,
        absl::StrCat(values->Text(number.path), " in the text; the caller's ",
                     Argument(number.name, *number.value), " is not used"));
  }
}

}  // namespace terrace
