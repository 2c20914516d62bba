// activation_checkpointing.cpu_checkpointing, with and without a caller that
// offloads activations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/zero_config/key_rows.h"

namespace terrace::zero_config_test {
namespace {

using NoteKind = ZeroConfigNote::Kind;
using testing::HasSubstr;

constexpr char kKey[] = "activation_checkpointing.cpu_checkpointing";
constexpr char kParam[] = "zero_optimization.offload_param";
constexpr char kOptimizer[] = "zero_optimization.offload_optimizer";

ZeroConfigCaller Offloading() {
  ZeroConfigCaller caller;
  caller.model.parameters = ZeroConfigCaller::Parameters::kOffloaded;
  caller.model.offloads_activations = true;
  return caller;
}

absl::StatusOr<ZeroConfigSettings> ReadBoth(const std::string& zero,
                                            const ZeroConfigCaller& caller,
                                            const char* wish = "true") {
  return ReadMembers(
      absl::StrCat("\"activation_checkpointing\": {\"cpu_checkpointing\": ",
                   wish, "}, \"zero_optimization\": {", zero, "}"),
      caller);
}

int NotesOf(const ZeroConfigSettings& settings, const std::string& path) {
  int found = 0;
  for (const ZeroConfigNote& note : settings.notes) found += note.path == path;
  return found;
}

TEST(Activations, GoWhereParametersGo) {
  const auto settings = ReadBoth(
      "\"stage\": 3, \"offload_param\": {\"device\": \"nvme\", "
      "\"nvme_path\": [\"/a\", \"/b\"]}, \"offload_optimizer\": {\"device\": "
      "\"nvme\", \"nvme_path\": \"/c\"}",
      Offloading());
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->callers.activations.device, OffloadDevice::kNvme);
  EXPECT_EQ(settings->callers.activations.paths,
            (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ(settings->callers.activations.key,
            absl::StrCat(kParam, ".nvme_path"));
  EXPECT_EQ(settings->callers.parameters.paths,
            settings->callers.activations.paths);
  EXPECT_EQ(settings->callers.parameters.key,
            settings->callers.activations.key);
  EXPECT_EQ(settings->nvme_paths, std::vector<std::string>{"/c"});
  EXPECT_EQ(NotesOf(*settings, kKey), 0);
}

TEST(Activations, GoWhereTheStateGoesWhereParametersHaveNoPath) {
  for (const char* stage : {"0", "2", "3"}) {
    const auto settings =
        ReadBoth(absl::StrCat("\"stage\": ", stage,
                              ", \"offload_optimizer\": {\"device\": \"nvme\", "
                              "\"nvme_path\": \"/c\"}"),
                 Offloading());
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->callers.activations.paths,
              std::vector<std::string>{"/c"});
    EXPECT_EQ(settings->callers.activations.key,
              absl::StrCat(kOptimizer, ".nvme_path"));
    EXPECT_EQ(settings->callers.parameters.device, OffloadDevice::kNone);
  }
}

TEST(Activations, UseAPathWhoseDeviceDoesNot) {
  for (const char* section : {"offload_param", "offload_optimizer"}) {
    for (const char* device : {"none", "cpu"}) {
      const auto settings = ReadBoth(
          absl::StrCat("\"stage\": 3, \"", section, "\": {\"device\": \"",
                       device, "\", \"nvme_path\": \"/a\"}"),
          Offloading());
      ASSERT_TRUE(settings.ok()) << settings.status();
      EXPECT_EQ(settings->callers.activations.paths,
                std::vector<std::string>{"/a"});
      EXPECT_TRUE(settings->callers.parameters.paths.empty());
      EXPECT_TRUE(settings->nvme_paths.empty());
      // No note says that the path is not used, or has no effect.
      const std::string path = absl::StrCat("zero_optimization.", section);
      EXPECT_EQ(NotesOf(*settings, path + ".nvme_path"), 0);
      EXPECT_EQ(NotesOf(*settings, path + ".device"), 0);
    }
  }
}

TEST(Activations, OtherKeysOfASectionWithoutADeviceAreStillNoted) {
  const auto settings = ReadBoth(
      "\"stage\": 3, \"offload_param\": {\"nvme_path\": \"/a\", "
      "\"max_in_cpu\": 5}",
      Offloading());
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(NotesOf(*settings, absl::StrCat(kParam, ".device")), 1);
}

TEST(Activations, WithoutAPathStayInMemory) {
  for (const char* zero : {"\"stage\": 0",
                           "\"stage\": 3, \"offload_param\": {\"device\": "
                           "\"cpu\"}"}) {
    const auto settings = ReadBoth(zero, Offloading());
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->callers.activations.device, OffloadDevice::kNone);
    EXPECT_EQ(NotesOf(*settings, kKey), 1);
    for (const ZeroConfigNote& note : settings->notes) {
      if (note.path != kKey) continue;
      EXPECT_THAT(note.text, HasSubstr(absl::StrCat(kParam, ".nvme_path")));
      EXPECT_THAT(note.text, HasSubstr(absl::StrCat(kOptimizer, ".nvme_path")));
    }
  }
}

TEST(Activations, OfSeveralRanksAreNotBuilt) {
  ZeroConfigCaller caller = Offloading();
  caller.world_size = 2;
  const auto settings = ReadBoth("\"stage\": 1", caller);
  EXPECT_EQ(settings.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(settings.status().message()), HasSubstr(kKey));
}

TEST(Activations, StayWhereTheTextOrTheCallerLeavesThem) {
  const std::string zero =
      "\"stage\": 1, \"offload_optimizer\": {\"device\": \"nvme\", "
      "\"nvme_path\": \"/c\"}";
  for (const char* wish : {"false", "\"auto\""}) {
    const auto settings = ReadBoth(zero, Offloading(), wish);
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->callers.activations.device, OffloadDevice::kNone);
    EXPECT_EQ(NotesOf(*settings, kKey), 0);
  }
  const auto settings = ReadBoth(zero, {});
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->callers.activations.device, OffloadDevice::kNone);
  EXPECT_EQ(NotesOf(*settings, kKey), 1);
}

}  // namespace
}  // namespace terrace::zero_config_test
