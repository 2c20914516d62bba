#include "libtorch/python/zero_config_binding.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

absl::StatusOr<DType> ParseDType(const std::string& name) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("parameters of ", name, " cannot be stepped"));
}

absl::StatusOr<ZeroConfigCaller::Parameters> ParseParameters(
    const std::string& where) {
  using Parameters = ZeroConfigCaller::Parameters;
  if (where == "elsewhere") return Parameters::kElsewhere;
  if (where == "in_cpu_memory") return Parameters::kInCpuMemory;
  if (where == "offloaded_to_nvme") return Parameters::kOffloadedToNvme;
  if (where == "offloaded") return Parameters::kOffloaded;
  return absl::InvalidArgumentError(
      absl::StrCat("parameters are nowhere that is known: ", where));
}

// Of what AdamAsJson makes. Throws, as the library does.
AdamOptions AdamOf(const Json& object) {
  AdamOptions adam;
  adam.learning_rate = object.at("lr").get<double>();
  adam.beta1 = object.at("betas").at(0).get<double>();
  adam.beta2 = object.at("betas").at(1).get<double>();
  adam.epsilon = object.at("eps").get<double>();
  adam.weight_decay = object.at("weight_decay").get<double>();
  adam.decoupled_decay = object.at("decoupled").get<bool>();
  adam.bias_correction = object.at("bias_correction").get<bool>();
  return adam;
}

absl::StatusOr<ZeroConfigCaller> ReadCaller(const std::string& text) {
  ZeroConfigCaller caller;
  try {
    const Json object = Json::parse(text);
    const auto take = [&object](const char* name, auto& value) {
      if (object.contains(name)) {
        value = object.at(name)
                    .get<typename std::decay_t<decltype(value)>::value_type>();
      }
    };
    take("learning_rate", caller.learning_rate);
    take("beta1", caller.beta1);
    take("beta2", caller.beta2);
    take("epsilon", caller.epsilon);
    take("weight_decay", caller.weight_decay);
    take("gradient_clipping", caller.gradient_clipping);
    take("warmup_min_lr", caller.warmup_min_lr);
    take("warmup_max_lr", caller.warmup_max_lr);
    take("warmup_num_steps", caller.warmup_num_steps);
    take("total_num_steps", caller.total_num_steps);
    take("micro_batch", caller.micro_batch);
    take("accumulation_steps", caller.accumulation_steps);
    take("train_batch", caller.train_batch);
    caller.world_size = object.value("world_size", caller.world_size);
    caller.shares_state = object.value("shares_state", caller.shares_state);
    TERRACE_ASSIGN_OR_RETURN(
        caller.model.parameters,
        ParseParameters(object.value("parameters", "elsewhere")));
    caller.model.is_cast = object.value("is_cast", caller.model.is_cast);
    caller.model.optimizers =
        object.value("optimizers", caller.model.optimizers);
    caller.model.offloads_activations =
        object.value("offloads_activations", caller.model.offloads_activations);
    caller.text_has_lines =
        object.value("text_has_lines", caller.text_has_lines);
    if (object.contains("adam")) caller.adam = AdamOf(object.at("adam"));
    if (object.contains("parameter_dtype")) {
      TERRACE_ASSIGN_OR_RETURN(
          caller.parameter_dtype,
          ParseDType(object.at("parameter_dtype").get<std::string>()));
    }
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("what the caller knows: ", error.what()));
  }
  return caller;
}

const char* NameOf(ZeroConfigNote::Kind kind) {
  switch (kind) {
    case ZeroConfigNote::Kind::kSized:
      return "sized";
    case ZeroConfigNote::Kind::kIgnored:
      return "ignored";
    case ZeroConfigNote::Kind::kDeprecated:
      return "deprecated";
    case ZeroConfigNote::Kind::kMeaning:
      return "meaning";
    case ZeroConfigNote::Kind::kContradicted:
      return "contradicted";
  }
  return "";
}

Json NotesAsJson(const std::vector<ZeroConfigNote>& notes) {
  Json array = Json::array();
  for (const ZeroConfigNote& note : notes) {
    array.push_back({{"kind", NameOf(note.kind)},
                     {"path", note.path},
                     {"text", note.text}});
  }
  return array;
}

Json LossScaleAsJson(const std::optional<LossScaleSettings>& scale) {
  if (!scale) return nullptr;
  return {{"dynamic", scale->dynamic},
          {"initial", scale->initial},
          {"window", scale->window},
          {"hysteresis", scale->hysteresis},
          {"consecutive_hysteresis", scale->consecutive_hysteresis},
          {"least", scale->least}};
}

Json AdamAsJson(const std::optional<AdamOptions>& adam) {
  if (!adam) return nullptr;
  return {{"lr", adam->learning_rate},
          {"betas", {adam->beta1, adam->beta2}},
          {"eps", adam->epsilon},
          {"weight_decay", adam->weight_decay},
          {"decoupled", adam->decoupled_decay},
          {"bias_correction", adam->bias_correction}};
}

Json CallersOptimizerAsJson(const std::optional<CallersOptimizer>& optimizer) {
  if (!optimizer) return nullptr;
  return {{"type", optimizer->type},
          {"params", Json::parse(optimizer->params)}};
}

constexpr const char* kDevices[] = {"none", "cpu", "nvme"};

Json PlaceAsJson(const OffloadTarget& place) {
  return {{"device", kDevices[static_cast<int>(place.device)]},
          {"paths", place.paths},
          {"key", place.key}};
}

}  // namespace

Outcome ZeroConfigBinding::Open(const std::string& text,
                                const std::string& caller) {
  const absl::StatusOr<ZeroConfigCaller> known = ReadCaller(caller);
  if (!known.ok()) return ToOutcome(known.status());
  absl::StatusOr<ZeroConfigSettings> settings = ReadZeroConfig(text, *known);
  if (!settings.ok()) return ToOutcome(settings.status());
  settings_ = *std::move(settings);
  is_cast_ =
      known->model.is_cast && settings_.parameter_dtype != DType::kFloat32;
  return Answer("");
}

std::string ZeroConfigBinding::Describe() const {
  const ZeroConfigSettings& s = settings_;
  const Json description = {
      {"stage", s.stage},
      {"optimizer", AdamAsJson(s.adam)},
      {"callers_optimizer", CallersOptimizerAsJson(s.callers.optimizer)},
      {"has_schedule",
       s.schedule.kind != LearningRateSchedule::Kind::kConstant},
      {"cycles_momentum", s.schedule.cycles_momentum},
      {"gradient_clipping", s.max_gradient_norm},
      {"micro_batch", s.micro_batch},
      {"accumulation_steps", s.accumulation_steps},
      {"train_batch", s.train_batch},
      {"parameter_dtype", DTypeName(s.parameter_dtype)},
      {"buffer_dtype", s.callers.buffer_dtype
                           ? Json(DTypeName(*s.callers.buffer_dtype))
                           : Json(nullptr)},
      {"loss_scale", LossScaleAsJson(s.loss_scale)},
      {"skip_nonfinite", s.skip_nonfinite},
      {"offload_device", kDevices[static_cast<int>(s.offload_device)]},
      {"nvme_path", s.nvme_paths},
      {"daemon", s.daemon},
      {"parameter_place", PlaceAsJson(s.callers.parameters)},
      {"activation_place", PlaceAsJson(s.callers.activations)},
      {"notes", NotesAsJson(s.notes)},
      {"given", s.given}};
  return description.dump();
}

Outcome ZeroConfigBinding::Plan(const std::vector<at::Tensor>& parameters,
                                const std::vector<std::string>& names,
                                int64_t budget_bytes, bool at_least_minimum) {
  std::vector<ParameterSpec> specs;
  for (size_t i = 0; i < parameters.size() && i < names.size(); ++i) {
    absl::StatusOr<ParameterSpec> spec =
        DescribeTensor(parameters[i], absl::StrCat("'", names[i], "'"),
                       OffloadedTensors::kTaken);
    if (!spec.ok()) return ToOutcome(spec.status());
    spec->name = names[i];
    if (is_cast_) spec->dtype = settings_.parameter_dtype;
    specs.push_back(*std::move(spec));
  }
  if (at_least_minimum && budget_bytes > 0) {
    const absl::StatusOr<OptimizerPlan> any = OffloadedOptimizer::Plan(
        specs, {}, std::numeric_limits<int64_t>::max() / 2);
    if (!any.ok()) return ToOutcome(any.status());
    budget_bytes = std::max(budget_bytes, any->minimum_budget_bytes);
  }
  const absl::StatusOr<ZeroConfigOptions> options =
      OptionsFromZeroConfig(settings_, specs, budget_bytes);
  if (!options.ok()) return ToOutcome(options.status());
  const absl::StatusOr<std::vector<ZeroConfigNote>> notes =
      CheckZeroConfigResources(*options, specs);
  if (!notes.ok()) return ToOutcome(notes.status());
  const bool has_below =
      !options->runtime.paths.empty() || !options->runtime.daemon.empty();
  const bool everything = !has_below && budget_bytes == 0;
  const Json plan = {
      {"budget_bytes", everything ? BindingOptions::kEverything
                                  : options->runtime.host_budget_bytes},
      {"paths", options->runtime.paths},
      {"daemon", options->runtime.daemon},
      {"threads", options->runtime.threads},
      {"chunk_bytes", options->optimizer.chunk_bytes},
      {"notes", NotesAsJson(*notes)}};
  return Answer(plan.dump());
}

std::vector<double> ZeroConfigBinding::AdamOfStep(int64_t step) const {
  const AdamOptions adam =
      AdamAt(settings_.schedule, step, settings_.adam.value_or(AdamOptions()));
  return {adam.learning_rate, adam.beta1, adam.beta2};
}

}  // namespace terrace
