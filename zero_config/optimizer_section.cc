#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero_config/caller_numbers.h"
#include "zero_config/callers_optimizer.h"
#include "zero_config/keys/nearest_name.h"
#include "zero_config/sections.h"

namespace terrace {
namespace {

using NoteKind = ZeroConfigNote::Kind;

constexpr char kOptimizerType[] = "optimizer.type";
constexpr char kParams[] = "optimizer.params.";

// DeepSpeed's own, in any letter case; the first two are built.
std::vector<std::string> KnownOptimizers() {
  return {"Adam",        "AdamW",  "Adagrad",    "Lamb",
          "Lion",        "Muon",   "OneBitAdam", "OneBitLamb",
          "ZeroOneAdam", "MuAdam", "MuAdamW",    "MuSGD"};
}

// The text's, else the caller's, else the one given here.
double NumberAt(const KeyValues& values, const std::string& path,
                const ZeroConfigCaller& caller, const char* name,
                const std::optional<double>& callers, double otherwise) {
  if (values.Given(path)) return values.Number(path);
  return FilledIn(caller, name, callers, values, path).value_or(otherwise);
}

absl::Status CheckTorchAdam(const KeyValues& values) {
  if (!values.Boolean(absl::StrCat(kParams, "torch_adam"))) {
    return absl::OkStatus();
  }
  const std::string bias = absl::StrCat(kParams, "bias_correction");
  if (values.Boolean(bias)) return absl::OkStatus();
  return values.Bad(bias, "torch_adam always corrects the bias");
}

// Adam or AdamW, and whether that is what it seems to be.
bool DecoupledDecay(KeyValues* values) {
  const std::string mode = absl::StrCat(kParams, "adam_w_mode");
  if (absl::EqualsIgnoreCase(values->Text(kOptimizerType), "AdamW")) {
    if (!values->Boolean(mode)) {
      values->AddNote(NoteKind::kMeaning, mode,
                      "type AdamW decouples the decay whatever adam_w_mode "
                      "says, as in DeepSpeed");
    }
    return true;
  }
  if (values->Boolean(mode)) {
    values->AddNote(NoteKind::kMeaning, kOptimizerType,
                    "type Adam means AdamW unless adam_w_mode is false, as in "
                    "DeepSpeed");
  }
  return values->Boolean(mode);
}

absl::Status ReadAdam(const ZeroConfigCaller& caller, KeyValues* values,
                      AdamOptions* adam) {
  const std::string lr = absl::StrCat(kParams, "lr");
  if (values->IsAuto(lr) && !caller.learning_rate) {
    return values->Bad(lr,
                       "the caller gave no learning rate; pass learning_rate=");
  }
  adam->decoupled_decay = DecoupledDecay(values);
  adam->learning_rate = NumberAt(*values, lr, caller, "learning_rate",
                                 caller.learning_rate, 1e-3);
  const std::string betas = absl::StrCat(kParams, "betas");
  adam->beta1 =
      FilledIn(caller, "beta1", caller.beta1, *values, betas).value_or(0.9);
  adam->beta2 =
      FilledIn(caller, "beta2", caller.beta2, *values, betas).value_or(0.999);
  if (const std::vector<double> two = values->Numbers(betas); !two.empty()) {
    adam->beta1 = two[0];
    adam->beta2 = two[1];
  }
  if (adam->beta1 >= 1 || adam->beta2 >= 1) {
    return values->Bad(betas, "allowed: two numbers of at least 0, below 1");
  }
  adam->epsilon = NumberAt(*values, absl::StrCat(kParams, "eps"), caller,
                           "epsilon", caller.epsilon, 1e-8);
  // DeepSpeed's own classes decay by 0, torch.optim.AdamW by 0.01.
  const bool torch = values->Boolean(absl::StrCat(kParams, "torch_adam"));
  adam->weight_decay = NumberAt(*values, absl::StrCat(kParams, "weight_decay"),
                                caller, "weight_decay", caller.weight_decay,
                                torch && adam->decoupled_decay ? 1e-2 : 0.0);
  adam->bias_correction =
      values->Boolean(absl::StrCat(kParams, "bias_correction"));
  return absl::OkStatus();
}

std::string Described(const AdamOptions& adam) {
  return absl::StrCat(adam.decoupled_decay ? "AdamW" : "Adam", " of lr ",
                      adam.learning_rate, ", betas ", adam.beta1, " and ",
                      adam.beta2, ", eps ", adam.epsilon, ", weight_decay ",
                      adam.weight_decay);
}

}  // namespace

absl::Status CheckOptimizerType(const ZeroConfigCaller& caller,
                                const JsonValue& root) {
  const JsonValue* section = root.Find("optimizer");
  const JsonValue* type = section == nullptr ? nullptr : section->Find("type");
  if (type == nullptr || type->kind != JsonValue::Kind::kText) {
    return absl::OkStatus();  // for the table to say
  }
  if (type->text.empty() || type->text == "auto" ||
      absl::EqualsIgnoreCase(type->text, "adam") ||
      absl::EqualsIgnoreCase(type->text, "adamw") ||
      !CallersName(caller, type->text).empty()) {
    return absl::OkStatus();
  }
  const std::string where = absl::StrCat(
      kOptimizerType, ": ", Shortened(JsonText(*type)), LineText(type->line));
  bool known = false;
  for (const std::string& name : KnownOptimizers()) {
    known = known || absl::EqualsIgnoreCase(name, type->text);
  }
  const std::string hint = DidYouMean(type->text, {"Adam", "AdamW"});
  if (!known && !hint.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " is no optimizer", hint));
  }
  return absl::UnimplementedError(absl::StrCat(
      where, " is not built; allowed: \"Adam\", \"AdamW\"",
      caller.model.optimizers.empty() ? ""
                                      : ", and optimizers of torch.optim"));
}

absl::Status ReadOptimizer(const ZeroConfigCaller& caller, KeyValues* values,
                           ZeroConfigSettings* settings) {
  const char* clipping = "gradient_clipping";
  settings->max_gradient_norm = NumberAt(*values, clipping, caller, clipping,
                                         caller.gradient_clipping, 1.0);
  if (!values->Given("optimizer")) {
    settings->adam = caller.adam;
    settings->schedule.base = caller.adam ? caller.adam->learning_rate
                                          : caller.learning_rate.value_or(1e-3);
    if (caller.adam) {
      values->AddNote(NoteKind::kMeaning, "optimizer",
                      absl::StrCat("not in the text; the caller's: ",
                                   Described(*caller.adam)));
    }
    return absl::OkStatus();
  }
  if (!values->Given(kOptimizerType)) {
    return values->Bad("optimizer", "needs a type: \"Adam\" or \"AdamW\"");
  }
  if (settings->callers.optimizer) {
    values->AddNote(NoteKind::kMeaning, kOptimizerType,
                    absl::StrCat(settings->callers.optimizer->type,
                                 " of torch.optim: its state stays in memory"));
    return absl::OkStatus();
  }
  TERRACE_RETURN_IF_ERROR(CheckTorchAdam(*values));
  const std::string states = absl::StrCat(kParams, "fp32_optimizer_states");
  if (!values->Boolean(states) &&
      settings->parameter_dtype != DType::kFloat32) {
    return values->NotBuilt(states, "moments are fp32; allowed: true");
  }
  AdamOptions adam;
  TERRACE_RETURN_IF_ERROR(ReadAdam(caller, values, &adam));
  settings->adam = adam;
  settings->schedule.base = adam.learning_rate;
  return absl::OkStatus();
}

}  // namespace terrace
