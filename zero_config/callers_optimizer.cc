#include "zero_config/callers_optimizer.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "zero_config/sections.h"

namespace terrace {
namespace {

using Kind = JsonValue::Kind;

JsonValue* Member(JsonValue* object, absl::string_view name) {
  if (object == nullptr || object->kind != Kind::kObject) return nullptr;
  for (JsonValue& item : object->items) {
    if (item.key == name) return &item;
  }
  return nullptr;
}

JsonValue NumberValue(double number) {
  JsonValue value;
  value.kind = Kind::kNumber;
  value.number = number;
  return value;
}

// What the caller gives for a param that is "auto"; absent: nothing.
std::optional<JsonValue> Given(const ZeroConfigCaller& caller,
                               absl::string_view name) {
  if (name == "betas" && caller.beta1 && caller.beta2) {
    JsonValue list;
    list.kind = Kind::kList;
    list.items = {NumberValue(*caller.beta1), NumberValue(*caller.beta2)};
    return list;
  }
  const std::optional<double> number = name == "lr"    ? caller.learning_rate
                                       : name == "eps" ? caller.epsilon
                                       : name == "weight_decay"
                                           ? caller.weight_decay
                                           : std::nullopt;
  if (!number) return std::nullopt;
  return NumberValue(*number);
}

// The params with no "auto": the caller's value, or, as it is the optimizer's
// default, no param at all.
absl::StatusOr<JsonValue> Resolved(const ZeroConfigCaller& caller,
                                   const JsonValue& params) {
  JsonValue resolved;
  resolved.kind = Kind::kObject;
  for (const JsonValue& item : params.items) {
    if (item.kind != Kind::kText || item.text != "auto") {
      resolved.items.push_back(item);
      continue;
    }
    std::optional<JsonValue> given = Given(caller, item.key);
    if (given) {
      given->key = item.key;
      resolved.items.push_back(*std::move(given));
    } else if (item.key == "lr") {
      return absl::InvalidArgumentError(absl::StrCat(
          "optimizer.params.lr: \"auto\"", LineText(item.line),
          ": the caller gave no learning rate; pass learning_rate="));
    }
  }
  return resolved;
}

// The rate that a schedule starts from.
absl::Status ReadRate(const JsonValue& params, ZeroConfigSettings* settings) {
  const JsonValue* rate = params.Find("lr");
  if (rate == nullptr) return absl::OkStatus();
  const bool is_number =
      rate->kind == Kind::kInteger || rate->kind == Kind::kNumber;
  if (!is_number || rate->number < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer.params.lr: ", Shortened(JsonText(*rate)),
        LineText(rate->line), ": allowed: a number of at least 0"));
  }
  settings->schedule.base = rate->number;
  return absl::OkStatus();
}

}  // namespace

std::string CallersName(const ZeroConfigCaller& caller,
                        absl::string_view name) {
  if (caller.model.optimizers.count(std::string(name)) > 0)
    return std::string(name);
  // DeepSpeed looks its own names up in any letter case, of which this is
  // torch's.
  const char* adagrad = "Adagrad";
  const bool is_adagrad = absl::EqualsIgnoreCase(name, adagrad);
  return is_adagrad && caller.model.optimizers.count(adagrad) > 0 ? adagrad
                                                                  : "";
}

absl::Status TakeCallersOptimizer(const ZeroConfigCaller& caller,
                                  JsonValue* root,
                                  ZeroConfigSettings* settings) {
  JsonValue* section = Member(root, "optimizer");
  const JsonValue* type = Member(section, "type");
  if (type == nullptr || type->kind != Kind::kText) return absl::OkStatus();
  const std::string name = CallersName(caller, type->text);
  if (name.empty()) return absl::OkStatus();
  JsonValue none;
  none.kind = Kind::kObject;
  JsonValue* params = Member(section, "params");
  const bool is_object = params != nullptr && params->kind == Kind::kObject;
  const absl::StatusOr<JsonValue> resolved =
      Resolved(caller, is_object ? *params : none);
  if (!resolved.ok()) return resolved.status();
  const absl::Status rate = ReadRate(*resolved, settings);
  if (!rate.ok()) return rate;
  settings->callers.optimizer = {name, JsonText(*resolved)};
  if (is_object) params->items.clear();
  return absl::OkStatus();
}

}  // namespace terrace
