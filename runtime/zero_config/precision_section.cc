#include <cmath>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/zero_config/sections.h"

namespace terrace {
namespace {

bool Enabled(const char* section, DType dtype, const ZeroConfigCaller& caller,
             const KeyValues& values) {
  const std::string path = absl::StrCat(section, ".enabled");
  if (values.IsAuto(path)) return caller.parameter_dtype == dtype;
  return values.Boolean(path);
}

absl::Status CheckBf16(const KeyValues& values, int stage) {
  const char* states = "bf16.bf16_optimizer_states";
  const char* masters = "bf16.bf16_master_weights_and_grads";
  if (values.Boolean(states) && !values.Boolean(masters)) {
    return values.Bad(states, absl::StrCat("needs ", masters));
  }
  if (values.Boolean(states) && stage == 0) {
    return values.Bad(states, "needs zero_optimization.stage 1, 2 or 3");
  }
  if (!values.Boolean(masters)) return absl::OkStatus();
  return values.NotBuilt(
      masters,
      "16-bit parameters have an fp32 master and fp32 moments; allowed: false");
}

absl::Status CheckAutoCast(bool fp16, KeyValues* values) {
  const char* path = "fp16.auto_cast";
  if (!values->Boolean(path)) return absl::OkStatus();
  if (fp16) {
    return values->NotBuilt(
        path, "the training program casts its inputs; allowed: false");
  }
  values->AddNote(ZeroConfigNote::Kind::kIgnored, path,
                  "accepted; no effect here: fp16 is off");
  return absl::OkStatus();
}

LossScaleSettings ReadLossScale(const KeyValues& values) {
  LossScaleSettings scale;
  const double fixed = values.Number("fp16.loss_scale");
  scale.dynamic = fixed == 0;
  scale.initial = scale.dynamic
                      ? std::ldexp(1.0, static_cast<int>(values.Integer(
                                            "fp16.initial_scale_power")))
                      : fixed;
  scale.window = values.Integer("fp16.loss_scale_window");
  scale.hysteresis = values.Integer("fp16.hysteresis");
  scale.consecutive_hysteresis = values.Boolean("fp16.consecutive_hysteresis");
  scale.least = values.Number("fp16.min_loss_scale");
  return scale;
}

// One of data_types: it may only say what is so anyway.
absl::Status CheckDataType(const KeyValues& values, const char* name,
                           DType dtype) {
  const std::string path = absl::StrCat("data_types.", name);
  if (!values.Given(path)) return absl::OkStatus();
  if (values.Text(path) == DTypeName(dtype)) return absl::OkStatus();
  return values.NotBuilt(
      path, absl::StrCat("it changes the mathematics: gradients and buffers "
                         "have the parameters' type; allowed: \"",
                         DTypeName(dtype), "\" or null"));
}

}  // namespace

absl::Status ReadPrecision(const ZeroConfigCaller& caller, KeyValues* values,
                           ZeroConfigSettings* settings) {
  const bool bf16 = Enabled("bf16", DType::kBFloat16, caller, *values);
  const bool fp16 = Enabled("fp16", DType::kFloat16, caller, *values);
  if (bf16 && fp16) {
    return values->Bad("bf16.enabled", "not together with fp16.enabled");
  }
  TERRACE_RETURN_IF_ERROR(CheckBf16(*values, settings->stage));
  settings->parameter_dtype = bf16   ? DType::kBFloat16
                              : fp16 ? DType::kFloat16
                                     : DType::kFloat32;
  if (caller.parameter_dtype &&
      *caller.parameter_dtype != settings->parameter_dtype) {
    const char* asks = DTypeName(settings->parameter_dtype);
    return absl::InvalidArgumentError(absl::StrCat(
        "bf16.enabled ", bf16 ? "true" : "false", " and fp16.enabled ",
        fp16 ? "true" : "false", " ask for parameters in ", asks,
        "; the model's are ", DTypeName(*caller.parameter_dtype),
        ": Terrace casts no model, cast it or change the keys"));
  }
  TERRACE_RETURN_IF_ERROR(CheckAutoCast(fp16, values));
  if (fp16) settings->loss_scale = ReadLossScale(*values);
  settings->skip_nonfinite =
      fp16 || (bf16 && values->Boolean("bf16.check_grad_overflow"));
  for (const char* name : {"grad_accum_dtype", "param_dtype", "buffer_dtype"}) {
    TERRACE_RETURN_IF_ERROR(
        CheckDataType(*values, name, settings->parameter_dtype));
  }
  return absl::OkStatus();
}

}  // namespace terrace
