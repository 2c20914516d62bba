#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero_config/sections.h"

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
  values->AddNote(ZeroConfigNote::Kind::kIgnored, path,
                  fp16 ? "accepted; no effect here: the training program casts "
                         "its inputs"
                       : "accepted; no effect here: fp16 is off");
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

// What a dynamic scale divides by, or falls to.
absl::Status CheckLossScale(const LossScaleSettings& scale,
                            const KeyValues& values) {
  if (!scale.dynamic) return absl::OkStatus();
  for (const char* path : {"fp16.loss_scale_window", "fp16.min_loss_scale"}) {
    if (values.Integer(path) > 0) continue;
    return values.Bad(path, "allowed: an integer of at least 1");
  }
  return absl::OkStatus();
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
  const bool casts = caller.model.is_cast && (bf16 || fp16);
  if (!casts && caller.parameter_dtype &&
      *caller.parameter_dtype != settings->parameter_dtype) {
    const char* asks = DTypeName(settings->parameter_dtype);
    return absl::InvalidArgumentError(absl::StrCat(
        "bf16.enabled ", bf16 ? "true" : "false", " and fp16.enabled ",
        fp16 ? "true" : "false", " ask for parameters in ", asks,
        "; the model's are ", DTypeName(*caller.parameter_dtype),
        ": they are not cast; cast them or change the keys"));
  }
  TERRACE_RETURN_IF_ERROR(CheckAutoCast(fp16, values));
  if (fp16) {
    settings->loss_scale = ReadLossScale(*values);
    TERRACE_RETURN_IF_ERROR(CheckLossScale(*settings->loss_scale, *values));
  }
  settings->skip_nonfinite =
      fp16 || (bf16 && values->Boolean("bf16.check_grad_overflow"));
  TERRACE_RETURN_IF_ERROR(
      CheckDataType(*values, "param_dtype", settings->parameter_dtype));
  const char* buffers = "data_types.buffer_dtype";
  if (!caller.model.is_cast) {
    return CheckDataType(*values, "buffer_dtype", settings->parameter_dtype);
  }
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (values->Given(buffers) && values->Text(buffers) == DTypeName(dtype)) {
      settings->callers.buffer_dtype = dtype;
    }
  }
  return absl::OkStatus();
}

// One micro-batch has one gradient, whose sum in fp32 is itself. DeepSpeed has
// such sums from stage 1 on.
absl::Status CheckAccumulation(const KeyValues& values,
                               const ZeroConfigSettings& settings) {
  const char* name = "grad_accum_dtype";
  const bool sums_one = settings.accumulation_steps == 1 &&
                        settings.stage > 0 &&
                        values.Text(absl::StrCat("data_types.", name)) ==
                            DTypeName(DType::kFloat32);
  if (sums_one) return absl::OkStatus();
  return CheckDataType(values, name, settings.parameter_dtype);
}

}  // namespace terrace
