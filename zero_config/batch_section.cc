#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "zero_config/caller_numbers.h"
#include "zero_config/sections.h"

namespace terrace {
namespace {

constexpr char kTrain[] = "train_batch_size";
constexpr char kMicro[] = "train_micro_batch_size_per_gpu";
constexpr char kSteps[] = "gradient_accumulation_steps";

// One of the three.
struct Number {
  const char* key;
  const char* name;  // of the caller's argument
  std::optional<int64_t> callers;
  std::optional<int64_t> value = {};
  bool from_caller = false;

  std::string Text() const {
    if (from_caller) return absl::StrCat(name, "=", *value);
    return absl::StrCat(key, " ", *value);
  }
};

// What the text says, or the caller in its place; else it stays unknown.
absl::Status Know(const ZeroConfigCaller& caller, const KeyValues& values,
                  bool leaves, Number* number) {
  if (values.Given(number->key)) {
    number->value = values.Integer(number->key);
    return absl::OkStatus();
  }
  // A default has no part in a batch whose size the text has.
  const bool fills =
      values.IsAuto(number->key) ||
      (leaves && (FillsIn(caller, number->name, values, number->key) ||
                  !values.Given(kTrain)));
  if (!fills || !number->callers) return absl::OkStatus();
  if (*number->callers < 1) {
    return values.Bad(number->key,
                      absl::StrCat("the caller's value is ", *number->callers,
                                   "; allowed: at least 1"));
  }
  number->value = number->callers;
  number->from_caller = true;
  return absl::OkStatus();
}

// The given numbers' and the ranks' product. Error: more than 2^63.
absl::StatusOr<int64_t> Product(const std::vector<const Number*>& numbers,
                                int64_t ranks, std::string* text) {
  int64_t product = ranks;
  bool fits = true;
  *text = "";
  for (const Number* number : numbers) {
    fits = fits && !__builtin_mul_overflow(product, *number->value, &product);
    absl::StrAppend(text, number->Text(), " * ");
  }
  absl::StrAppend(text, ranks, " ranks");
  if (fits) return product;
  return absl::InvalidArgumentError(absl::StrCat(*text, " is more than 2^63"));
}

// The one that is missing makes the product the batch.
absl::Status Divide(const Number& train, const Number& other, int64_t ranks,
                    Number* missing) {
  std::string text;
  TERRACE_ASSIGN_OR_RETURN(const int64_t part, Product({&other}, ranks, &text));
  if (*train.value % part != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        train.Text(), " is not a multiple of ", text, " = ", part));
  }
  missing->value = *train.value / part;
  return absl::OkStatus();
}

absl::Status Complete(int64_t ranks, Number* train, Number* micro,
                      Number* steps) {
  if (!train->value && !micro->value) {
    return absl::InvalidArgumentError(
        absl::StrCat("neither ", kTrain, " nor ", kMicro,
                     " is known; give one of them, or pass micro_batch="));
  }
  if (!micro->value) {
    if (!steps->value) steps->value = 1;
    return Divide(*train, *steps, ranks, micro);
  }
  if (!steps->value && train->value) {
    return Divide(*train, *micro, ranks, steps);
  }
  if (!steps->value) steps->value = 1;
  std::string text;
  TERRACE_ASSIGN_OR_RETURN(const int64_t product,
                           Product({micro, steps}, ranks, &text));
  if (train->value && *train->value != product) {
    return absl::InvalidArgumentError(
        absl::StrCat(train->Text(), " is not ", text));
  }
  train->value = product;
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadBatch(const ZeroConfigCaller& caller, KeyValues* values,
                       ZeroConfigSettings* settings) {
  Number train = {kTrain, "train_batch", caller.train_batch};
  Number micro = {kMicro, "micro_batch", caller.micro_batch};
  Number steps = {kSteps, "accumulation_steps", caller.accumulation_steps};
  const std::vector<Number*> all = {&train, &micro, &steps};
  std::vector<std::string> given;
  for (const Number* number : all) {
    if (values->Given(number->key)) given.push_back(number->key);
  }
  // From two of the text's the third follows.
  for (Number* number : all) {
    TERRACE_RETURN_IF_ERROR(Know(caller, *values, given.size() < 2, number));
  }
  TERRACE_RETURN_IF_ERROR(Complete(caller.world_size, &train, &micro, &steps));
  for (const Number* number : all) {
    if (!number->callers || caller.defaults.count(number->name) > 0 ||
        *number->callers == *number->value) {
      continue;
    }
    values->AddNote(
        ZeroConfigNote::Kind::kContradicted, number->key,
        absl::StrCat(
            *number->value,
            values->Given(number->key)
                ? " in the text"
                : absl::StrCat(" follows from ", absl::StrJoin(given, " and ")),
            "; the caller's ", number->name, "=", *number->callers,
            " is not used"));
  }
  settings->train_batch = *train.value;
  settings->micro_batch = *micro.value;
  settings->accumulation_steps = *steps.value;
  return absl::OkStatus();
}

}  // namespace terrace
