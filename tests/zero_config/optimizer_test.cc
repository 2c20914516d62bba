#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/match.h"
#include "tests/zero_config/key_rows.h"

namespace terrace::zero_config_test {
namespace {

std::string Optimizer(const std::string& type, const std::string& params) {
  return "\"optimizer\": {\"type\": \"" + type + "\", \"params\": {" + params +
         "}}";
}

AdamOptions Adam(const std::string& type, const std::string& params,
                 const ZeroConfigCaller& caller = {}) {
  const auto settings = ReadMembers(Optimizer(type, params), caller);
  EXPECT_TRUE(settings.ok()) << settings.status();
  EXPECT_TRUE(settings->adam.has_value());
  return settings.ok() ? settings->adam.value_or(AdamOptions()) : AdamOptions();
}

TEST(Optimizer, WithoutParamsItIsDeepSpeedsDefaults) {
  const AdamOptions adam = Adam("AdamW", "");
  EXPECT_EQ(adam.learning_rate, 1e-3);
  EXPECT_EQ(adam.beta1, 0.9);
  EXPECT_EQ(adam.beta2, 0.999);
  EXPECT_EQ(adam.epsilon, 1e-8);
  EXPECT_EQ(adam.weight_decay, 0);  // not 0.01, as torch.optim.AdamW's
  EXPECT_TRUE(adam.decoupled_decay);
  EXPECT_TRUE(adam.bias_correction);
}

TEST(Optimizer, ParamsAreTakenAsTheyAre) {
  const AdamOptions adam =
      Adam("AdamW",
           "\"lr\": \"3e-4\", \"betas\": [0.8, 0.95], \"eps\": 1e-6, "
           "\"weight_decay\": 0.1, \"bias_correction\": false");
  EXPECT_EQ(adam.learning_rate, 3e-4);
  EXPECT_EQ(adam.beta1, 0.8);
  EXPECT_EQ(adam.beta2, 0.95);
  EXPECT_EQ(adam.epsilon, 1e-6);
  EXPECT_EQ(adam.weight_decay, 0.1);
  EXPECT_FALSE(adam.bias_correction);
}

TEST(Optimizer, AdamDecouplesTheDecayUnlessToldOtherwise) {
  EXPECT_TRUE(Adam("Adam", "").decoupled_decay);
  EXPECT_TRUE(Adam("Adam", "\"adam_w_mode\": true").decoupled_decay);
  EXPECT_FALSE(Adam("Adam", "\"adam_w_mode\": false").decoupled_decay);
  EXPECT_TRUE(Adam("AdamW", "\"adam_w_mode\": false").decoupled_decay);
}

TEST(Optimizer, TorchsAdamWHasTorchsDecay) {
  EXPECT_EQ(Adam("AdamW", "\"torch_adam\": true").weight_decay, 1e-2);
  EXPECT_EQ(
      Adam("Adam", "\"torch_adam\": true, \"adam_w_mode\": false").weight_decay,
      0);
  const auto refused = ReadMembers(
      Optimizer("Adam", "\"torch_adam\": true, \"bias_correction\": false"));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Optimizer, AutoTakesTheCallersValuesElseTheDefaults) {
  const std::string params =
      "\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": \"auto\", "
      "\"weight_decay\": \"auto\"";
  ZeroConfigCaller caller;
  caller.learning_rate = 5e-5;
  AdamOptions adam = Adam("AdamW", params, caller);
  EXPECT_EQ(adam.learning_rate, 5e-5);
  EXPECT_EQ(adam.beta2, 0.999);
  EXPECT_EQ(adam.weight_decay, 0);
  caller.beta1 = 0.5;
  caller.beta2 = 0.6;
  caller.epsilon = 1e-5;
  caller.weight_decay = 0.3;
  adam = Adam("AdamW", params, caller);
  EXPECT_EQ(adam.beta1, 0.5);
  EXPECT_EQ(adam.beta2, 0.6);
  EXPECT_EQ(adam.epsilon, 1e-5);
  EXPECT_EQ(adam.weight_decay, 0.3);
}

TEST(Optimizer, AnAutoRateNeedsTheCaller) {
  const auto settings = ReadMembers(Optimizer("AdamW", "\"lr\": \"auto\""));
  EXPECT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(
      absl::StrContains(settings.status().message(), "optimizer.params.lr"));
}

TEST(Optimizer, ABetaOfOneIsRefused) {
  const auto settings = ReadMembers(Optimizer("Adam", "\"betas\": [0.9, 1]"));
  EXPECT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Optimizer, ParamsOfATypeThatIsNotBuiltAreNotCalledUnknown) {
  const auto lamb = ReadMembers(Optimizer("Lamb", "\"max_coeff\": 0.3"));
  EXPECT_EQ(lamb.status().code(), absl::StatusCode::kUnimplemented);
}

TEST(Optimizer, SixteenBitMomentsAreNotBuilt) {
  const std::string params = "\"fp32_optimizer_states\": false";
  EXPECT_TRUE(ReadMembers(Optimizer("AdamW", params)).ok());
  const auto bf16 = ReadMembers("\"bf16\": {\"enabled\": true}, " +
                                Optimizer("AdamW", params));
  EXPECT_EQ(bf16.status().code(), absl::StatusCode::kUnimplemented);
}

TEST(Optimizer, ClippingIsOneUnlessGiven) {
  EXPECT_EQ(ReadMembers("\"steps_per_print\": 1")->max_gradient_norm, 1.0);
  EXPECT_EQ(ReadMembers("\"gradient_clipping\": 0")->max_gradient_norm, 0);
  ZeroConfigCaller caller;
  caller.gradient_clipping = 0.25;
  const auto settings = ReadMembers("\"gradient_clipping\": \"auto\"", caller);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->max_gradient_norm, 0.25);
}

TEST(Precision, Bf16SkipsWhatIsNotFinite) {
  const auto bf16 = ReadMembers("\"bf16\": {\"enabled\": true}");
  const auto bold = ReadMembers(
      "\"bf16\": {\"enabled\": true, \"check_grad_overflow\": false}");
  const auto plain = ReadMembers("\"bf16\": {\"enabled\": false}");
  ASSERT_TRUE(bf16.ok() && bold.ok() && plain.ok());
  EXPECT_EQ(bf16->parameter_dtype, DType::kBFloat16);
  EXPECT_TRUE(bf16->skip_nonfinite);
  EXPECT_FALSE(bf16->loss_scale.has_value());
  EXPECT_FALSE(bold->skip_nonfinite);
  EXPECT_EQ(plain->parameter_dtype, DType::kFloat32);
  EXPECT_FALSE(plain->skip_nonfinite);
}

TEST(Precision, Fp16HasALossScale) {
  const auto dynamic = ReadMembers(
      "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 10, "
      "\"loss_scale_window\": 50, \"hysteresis\": 3, \"min_loss_scale\": 2, "
      "\"consecutive_hysteresis\": true}");
  ASSERT_TRUE(dynamic.ok()) << dynamic.status();
  EXPECT_EQ(dynamic->parameter_dtype, DType::kFloat16);
  EXPECT_TRUE(dynamic->skip_nonfinite);
  ASSERT_TRUE(dynamic->loss_scale.has_value());
  EXPECT_TRUE(dynamic->loss_scale->dynamic);
  EXPECT_EQ(dynamic->loss_scale->initial, 1024);
  EXPECT_EQ(dynamic->loss_scale->window, 50);
  EXPECT_EQ(dynamic->loss_scale->hysteresis, 3);
  EXPECT_EQ(dynamic->loss_scale->least, 2);
  EXPECT_TRUE(dynamic->loss_scale->consecutive_hysteresis);
  const auto fixed =
      ReadMembers("\"fp16\": {\"enabled\": true, \"loss_scale\": 128}");
  ASSERT_TRUE(fixed.ok()) << fixed.status();
  EXPECT_FALSE(fixed->loss_scale->dynamic);
  EXPECT_EQ(fixed->loss_scale->initial, 128);
}

TEST(Precision, BothAtOnceAreRefused) {
  const auto both =
      ReadMembers("\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": 1}");
  EXPECT_EQ(both.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(both.status().message(), "fp16.enabled"));
}

TEST(Precision, AutoFollowsTheModel) {
  const std::string text =
      "\"fp16\": {\"enabled\": \"auto\"}, \"bf16\": {\"enabled\": \"auto\"}";
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    ZeroConfigCaller caller;
    caller.parameter_dtype = dtype;
    const auto settings = ReadMembers(text, caller);
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->parameter_dtype, dtype);
  }
}

TEST(Precision, AModelOfAnotherTypeIsRefused) {
  ZeroConfigCaller caller;
  caller.parameter_dtype = DType::kFloat32;
  const auto cast = ReadMembers("\"bf16\": {\"enabled\": true}", caller);
  EXPECT_EQ(cast.status().code(), absl::StatusCode::kInvalidArgument);
  caller.parameter_dtype = DType::kBFloat16;
  EXPECT_TRUE(ReadMembers("\"bf16\": {\"enabled\": true}", caller).ok());
  const auto plain = ReadMembers("\"steps_per_print\": 1", caller);
  EXPECT_EQ(plain.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(plain.status().message(), "bf16"));
}

TEST(Precision, DataTypesMaySayWhatIsSo) {
  const std::string bf16 = "\"bf16\": {\"enabled\": true}, \"data_types\": ";
  EXPECT_TRUE(ReadMembers(bf16 + "{\"grad_accum_dtype\": \"bf16\"}").ok());
  EXPECT_EQ(
      ReadMembers(bf16 + "{\"grad_accum_dtype\": \"fp32\"}").status().code(),
      absl::StatusCode::kUnimplemented);
}

TEST(Checkpoint, TagValidationIsRead) {
  const auto tag = [](const char* word) {
    return ReadMembers(std::string("\"checkpoint\": {\"tag_validation\": \"") +
                       word + "\"}")
        ->tag_validation;
  };
  EXPECT_EQ(tag("ignore"), TagValidation::kIgnore);
  EXPECT_EQ(tag("Warn"), TagValidation::kWarn);
  EXPECT_EQ(tag("FAIL"), TagValidation::kFail);
}

}  // namespace
}  // namespace terrace::zero_config_test
