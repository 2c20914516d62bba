#include "zero_config/keys/key_conversion.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

using Kind = JsonValue::Kind;

std::optional<std::string> Boolean(const JsonValue& value) {
  if (value.kind == Kind::kBoolean) return value.boolean ? "true" : "false";
  if (value.kind == Kind::kInteger && value.integer == 1) return "true";
  if (value.kind == Kind::kInteger && value.integer == 0) return "false";
  if (value.kind == Kind::kText &&
      (value.text == "true" || value.text == "false")) {
    return value.text;
  }
  return std::nullopt;
}

std::optional<std::string> Integer(const JsonValue& value,
                                   const KeySpec& spec) {
  int64_t integer = 0;
  if (value.kind == Kind::kInteger) {
    integer = value.integer;
  } else if (value.kind == Kind::kNumber) {
    if (std::abs(value.number) >= 9.2e18 ||
        value.number != std::floor(value.number)) {
      return std::nullopt;
    }
    integer = static_cast<int64_t>(value.number);
  } else if (value.kind != Kind::kText ||
             !absl::SimpleAtoi(value.text, &integer)) {
    return std::nullopt;
  }
  const auto number = static_cast<double>(integer);
  if (number < spec.least || number > spec.most) return std::nullopt;
  return absl::StrCat(integer);
}

std::optional<std::string> Number(const JsonValue& value, const KeySpec& spec) {
  double number = value.number;
  if (value.kind == Kind::kText) {
    if (!absl::SimpleAtod(value.text, &number)) return std::nullopt;
  } else if (value.kind != Kind::kInteger && value.kind != Kind::kNumber) {
    return std::nullopt;
  }
  if (!std::isfinite(number) || number < spec.least || number > spec.most) {
    return std::nullopt;
  }
  return NumberText(number);
}

std::optional<std::string> Word(const JsonValue& value, const KeySpec& spec) {
  if (value.kind != Kind::kText) return std::nullopt;
  for (const std::string& word : spec.words) {
    if (value.text == word || (spec.type == KeyType::kAnyCase &&
                               absl::EqualsIgnoreCase(value.text, word))) {
      return word;
    }
  }
  return std::nullopt;
}

// A type by any of its names: DeepSpeed's, or torch's.
std::optional<std::string> DataType(const JsonValue& value,
                                    const KeySpec& spec) {
  static const std::map<absl::string_view, const char*> names = {
      {"float32", "fp32"},       {"float", "fp32"},
      {"float16", "fp16"},       {"half", "fp16"},
      {"bfloat16", "bf16"},      {"torch.float32", "fp32"},
      {"torch.float16", "fp16"}, {"torch.bfloat16", "bf16"}};
  if (value.kind != Kind::kText) return std::nullopt;
  const auto named = names.find(value.text);
  if (named != names.end()) return named->second;
  return Word(value, spec);
}

// What is neither "auto" nor empty.
std::optional<std::string> Name(const JsonValue& value) {
  if (value.kind != Kind::kText || value.text.empty()) return std::nullopt;
  if (value.text == "auto") return std::nullopt;
  return value.text;
}

std::optional<std::string> Scalar(const JsonValue& value, const KeySpec& spec) {
  if (value.kind == Kind::kText && !spec.takes_text) return std::nullopt;
  switch (spec.type) {
    case KeyType::kBoolean:
      return Boolean(value);
    case KeyType::kInteger:
      return Integer(value, spec);
    case KeyType::kNumber:
    case KeyType::kNumbers:
      return Number(value, spec);
    case KeyType::kWord:
    case KeyType::kAnyCase:
      return Word(value, spec);
    case KeyType::kDataType:
      return DataType(value, spec);
    case KeyType::kName:
    case KeyType::kPaths:
      return Name(value);
    case KeyType::kText:
    case KeyType::kTexts:
      if (value.kind != Kind::kText) return std::nullopt;
      return value.text;
    case KeyType::kInterval:
      if (value.kind == Kind::kText) {
        if (value.text == "auto") return "auto";
        return std::nullopt;
      }
      return Integer(value, spec);
    case KeyType::kSection:
    case KeyType::kOpaque:
      return JsonText(value);
  }
  return std::nullopt;
}

}  // namespace

bool ConvertValue(const JsonValue& value, const KeySpec& spec,
                  std::vector<std::string>* items) {
  const bool list = value.kind == Kind::kList;
  if (spec.type == KeyType::kNumbers && (!list || value.items.size() != 2)) {
    return false;
  }
  const bool takes_list = spec.type == KeyType::kNumbers ||
                          spec.type == KeyType::kPaths ||
                          spec.type == KeyType::kTexts;
  std::vector<const JsonValue*> sources;
  if (list && takes_list) {
    for (const JsonValue& item : value.items) sources.push_back(&item);
  } else {
    sources.push_back(&value);
  }
  for (const JsonValue* source : sources) {
    std::optional<std::string> item = Scalar(*source, spec);
    if (!item) return false;
    items->push_back(*std::move(item));
  }
  if (spec.type != KeyType::kPaths) return true;
  const std::set<std::string> different(items->begin(), items->end());
  return !items->empty() && different.size() == items->size();
}

bool TakesAuto(const KeySpec& spec) {
  switch (spec.type) {
    case KeyType::kName:
    case KeyType::kInterval:
    case KeyType::kSection:
    case KeyType::kOpaque:
      return false;
    default:
      return true;
  }
}

}  // namespace terrace
