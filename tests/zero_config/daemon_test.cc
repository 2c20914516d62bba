// terrace.daemon: a host's daemon in place of each nvme_path.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/zero_config/key_rows.h"

namespace terrace::zero_config_test {
namespace {

using testing::HasSubstr;

constexpr char kSocket[] = "unix:/run/terrace/control.sock";

ZeroConfigCaller OffloadingAll() {
  ZeroConfigCaller caller;
  caller.model.parameters = ZeroConfigCaller::Parameters::kOffloadedToNvme;
  caller.model.offloads_activations = true;
  return caller;
}

absl::StatusOr<ZeroConfigSettings> ReadBeside(const std::string& zero,
                                              const std::string& top = "") {
  return ReadMembers(absl::StrCat(top, "\"terrace\": {\"daemon\": \"", kSocket,
                                  "\"}, \"optimizer\": {\"type\": \"AdamW\"}, "
                                  "\"zero_optimization\": {",
                                  zero, "}"),
                     OffloadingAll());
}

void ExpectRefused(const std::string& zero, const std::string& words) {
  const auto settings = ReadBeside(zero);
  ASSERT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument)
      << settings.status();
  EXPECT_THAT(std::string(settings.status().message()), HasSubstr(words));
}

TEST(OfADaemon, AStateHasItsMemoryAndDisks) {
  const auto settings =
      ReadBeside("\"offload_optimizer\": {\"device\": \"nvme\"}");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->daemon, kSocket);
  EXPECT_EQ(settings->offload_device, OffloadDevice::kNvme);
  EXPECT_TRUE(settings->nvme_paths.empty());
  const std::vector<ParameterSpec> parameters = {
      {"a", DType::kFloat32, 40'000'000}};
  const auto options = OptionsFromZeroConfig(*settings, parameters);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->runtime.daemon, kSocket);
  EXPECT_TRUE(options->runtime.paths.empty());
  EXPECT_EQ(options->runtime.host_budget_bytes, 40'000'000 * 8 / 10);
  // What the machine has is the daemon's to say.
  const auto notes = CheckZeroConfigResources(*options, parameters);
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_TRUE(notes->empty());
}

TEST(OfADaemon, ParametersAndActivationsGoThereToo) {
  const auto settings = ReadBeside(
      "\"stage\": 3, \"offload_param\": {\"device\": \"nvme\"}",
      "\"activation_checkpointing\": {\"cpu_checkpointing\": true}, ");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->daemon, kSocket);
  EXPECT_EQ(settings->callers.parameters.device, OffloadDevice::kNvme);
  EXPECT_TRUE(settings->callers.parameters.paths.empty());
  EXPECT_EQ(settings->callers.activations.device, OffloadDevice::kNvme);
  EXPECT_TRUE(settings->callers.activations.paths.empty());
  EXPECT_EQ(settings->callers.activations.key, "terrace.daemon");
}

TEST(OfADaemon, ItsConfigurationSaysWhereTheDisksAre) {
  ExpectRefused(
      "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/a\"}",
      "zero_optimization.offload_optimizer.nvme_path");
  ExpectRefused(
      "\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\"}, "
      "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/a\"}",
      "zero_optimization.offload_param.nvme_path");
}

TEST(OfADaemon, ItHasMemoryOfItsOwn) {
  ExpectRefused("\"offload_optimizer\": {\"device\": \"cpu\"}",
                "beside terrace.daemon it is \"nvme\"");
}

TEST(OfADaemon, OneThatNothingGoesToIsAnError) {
  ExpectRefused("", "nothing is offloaded to it");
  // At stage 2 no parameters go anywhere.
  ExpectRefused("\"stage\": 2, \"offload_param\": {\"device\": \"nvme\"}",
                "nothing is offloaded to it");
}

}  // namespace
}  // namespace terrace::zero_config_test
