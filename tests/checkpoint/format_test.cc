// The files as others read them: safetensors by a reader of this test's own,
// headers that are none, and a save as files of weights.
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/io_fault.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/foreign_reader.h"
#include "tests/checkpoint/job.h"
#include "tests/checkpoint/safetensors_writer.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

std::string BytesOf(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST(CheckpointFiles, AreSafetensorsOfParametersAndStateByName) {
  Job job(Model::Mixed(3), {});
  ASSERT_TRUE(job.ok());
  job.model().parameters()[1].has_gradient = false;
  job.Step(1);
  TemporaryDirectory directory;
  ASSERT_TRUE(job.Save(directory.path()).ok());
  const auto parameters =
      ReadSafetensors(ReadAll(FileOf(directory, "parameters-")));
  const auto state = ReadSafetensors(ReadAll(FileOf(directory, "optimizer-")));
  size_t arrays = 0;
  for (size_t i = 0; i < job.model().parameters().size(); ++i) {
    const ModelParameter& parameter = job.model().parameters()[i];
    const ParameterSpec& spec = parameter.spec;
    SCOPED_TRACE(spec.name);
    ASSERT_EQ(parameters.count(spec.name), 1u);
    const ForeignTensor& saved = parameters.at(spec.name);
    EXPECT_EQ(saved.dtype, spec.dtype == DType::kFloat32    ? "F32"
                           : spec.dtype == DType::kBFloat16 ? "BF16"
                                                            : "F16");
    EXPECT_EQ(saved.shape, ShapeOf(spec.count));
    EXPECT_EQ(saved.bytes,
              std::string(static_cast<const char*>(parameter.values.data()),
                          saved.bytes.size()));
    EXPECT_EQ(static_cast<int64_t>(saved.bytes.size()),
              spec.count * DTypeBytes(spec.dtype));
    using Kind = OffloadedOptimizer::StateKind;
    for (const auto& [kind, suffix] :
         {std::pair{Kind::kMaster, ".master"},
          std::pair{Kind::kFirstMoment, ".exp_avg"},
          std::pair{Kind::kSecondMoment, ".exp_avg_sq"}}) {
      const bool exists =
          i != 1 && (kind != Kind::kMaster || spec.dtype != DType::kFloat32);
      ASSERT_EQ(state.count(spec.name + suffix), exists ? 1u : 0u) << suffix;
      if (!exists) continue;
      ++arrays;
      std::vector<float> expected(static_cast<size_t>(spec.count));
      if (spec.count > 0) {
        ASSERT_TRUE(job.optimizer()
                        .ReadState(static_cast<int>(i), kind, 0,
                                   absl::MakeSpan(expected), InAMinute())
                        .ok());
      }
      EXPECT_EQ(state.at(spec.name + suffix).dtype, "F32");
      EXPECT_EQ(state.at(spec.name + suffix).shape, ShapeOf(spec.count));
      EXPECT_EQ(state.at(spec.name + suffix).bytes, BytesOf(expected));
    }
  }
  EXPECT_EQ(parameters.size(), 12u);
  EXPECT_EQ(state.size(), arrays);
}

TEST(CheckpointFiles, NameOnesThatTheJsonSaysAllOf) {
  Job job(Model::Mixed(3), {});
  ASSERT_TRUE(job.ok());
  job.Step(1);
  job.Step(2);
  TemporaryDirectory directory;
  ASSERT_TRUE(job.Save(directory.path(), {{"seed", int64_t{5}}}).ok());
  const auto json = nlohmann::json::parse(
      ReadAll(directory.path() + "/checkpoint.json"))["checkpoint"];
  EXPECT_EQ(json["step"], 2);
  EXPECT_EQ(json["values"]["seed"]["int"], 5);
  EXPECT_EQ(json["parameter_steps"].size(), 12u);
  for (const char* kind : {"parameters", "optimizer"}) {
    const std::string path =
        directory.path() + "/" + json[kind]["name"].get<std::string>();
    EXPECT_EQ(ReadAll(path).size(), json[kind]["bytes"].get<size_t>());
  }
}

TEST(SafetensorsHeaders, LieWideDtypesFirstAndCoverTheFile) {
  SafetensorsHeader header;
  const auto text =
      MakeSafetensorsHeader({{"a", DType::kBFloat16, {3}},
                             {"b", DType::kFloat32, {2, 2}},
                             {"\xc3\xa9 \"quoted\"\n", DType::kFloat16, {}},
                             {"none", DType::kFloat32, {0, 7}}},
                            &header);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size() % 8, 0u);
  EXPECT_EQ(header.tensors[0].name, "b");
  EXPECT_EQ(header.file_bytes, static_cast<int64_t>(text->size()) + 16 + 6 + 2);
  const auto parsed = ParseSafetensorsHeader(text->substr(8));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->file_bytes, header.file_bytes);
  ASSERT_EQ(parsed->tensors.size(), 4u);
  for (const SafetensorsEntry& entry : header.tensors) {
    bool found = false;
    for (const SafetensorsEntry& other : parsed->tensors) {
      if (other.name != entry.name) continue;
      found = true;
      EXPECT_EQ(other.offset, entry.offset);
      EXPECT_EQ(other.size_bytes, entry.size_bytes);
      EXPECT_EQ(other.shape, entry.shape);
      EXPECT_EQ(other.dtype, entry.dtype);
    }
    EXPECT_TRUE(found) << entry.name;
  }
}

TEST(SafetensorsHeaders, ThatCannotBeAreRefused) {
  SafetensorsHeader header;
  const auto refused = [&](std::vector<SafetensorsEntry> tensors) {
    return absl::IsInvalidArgument(
        MakeSafetensorsHeader(std::move(tensors), &header).status());
  };
  EXPECT_TRUE(refused({{"", DType::kFloat32, {1}}}));
  EXPECT_TRUE(refused({{"__metadata__", DType::kFloat32, {1}}}));
  EXPECT_TRUE(
      refused({{"a", DType::kFloat32, {1}}, {"a", DType::kFloat32, {1}}}));
  EXPECT_TRUE(refused({{"a", DType::kFloat32, {-1}}}));
  EXPECT_TRUE(refused({{"a", DType::kFloat32, {1LL << 40, 1LL << 40}}}));
  EXPECT_TRUE(refused({{"not \xff utf-8", DType::kFloat32, {1}}}));
  for (const char* text : {
           "",
           "{",
           "[]",
           "7",
           R"({"a":1})",
           R"({"a":{"dtype":"F32"}})",
           R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})",
           R"({"a":{"dtype":32,"shape":[1],"data_offsets":[0,4]}})",
           R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})",
           R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
           R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})",
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})",
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})",
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,5]}})",
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
               "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
           R"({"a":{"dtype":"F32","shape":[9223372036854775807,
               9223372036854775807],"data_offsets":[0,4]}})",
           R"({"a":{"dtype":"F32","shape":[18446744073709551615],
               "data_offsets":[0,4]}})",
       }) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseSafetensorsHeader(text).status()))
        << text;
  }
  EXPECT_TRUE(ParseSafetensorsHeader("{}   ").ok());
  EXPECT_TRUE(ParseSafetensorsHeader(
                  R"({"__metadata__":{"format":"pt"},
                  "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})")
                  .ok());
}

TEST(Manifests, ComeBackAsTheyWere) {
  Manifest manifest;
  manifest.step = 41;
  manifest.parameters = {
      "p", 100, 64, 0xfedcba9876543210, {{"a", {1, ~uint64_t{0}}}, {"b", {}}}};
  manifest.state = {{"o", 200, 72, 7, {}}, {"q", 300, 80, 8, {}}};
  manifest.parameter_steps = {{"a", 41}, {"b", 0}};
  manifest.values = {{"seed", int64_t{INT64_MIN}}, {"rate", 0.1}};
  manifest.filed_values = {{"long", FiledValue::kText},
                           {"rng", FiledValue::kBytes}};
  manifest.values_file = {"v", 50, 48, 9, {{"value.rng", {2}}}};
  manifest.elsewhere = {"b"};
  const auto text = ManifestText(manifest);
  ASSERT_TRUE(text.ok());
  const auto parsed = ParseManifest(*text, "file");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->step, 41);
  ASSERT_TRUE(parsed->parameters);
  EXPECT_EQ(parsed->parameters->name, "p");
  EXPECT_EQ(parsed->parameters->size_bytes, 100);
  EXPECT_EQ(parsed->parameters->header_bytes, 64);
  EXPECT_EQ(parsed->parameters->header_checksum, 0xfedcba9876543210);
  EXPECT_EQ(parsed->parameters->checksums, manifest.parameters->checksums);
  ASSERT_THAT(parsed->state, SizeIs(2));
  EXPECT_EQ(parsed->state[0].size_bytes, 200);
  EXPECT_EQ(parsed->state[1].name, "q");
  EXPECT_EQ(parsed->size_bytes(), 650);
  EXPECT_EQ(parsed->elsewhere, manifest.elsewhere);
  EXPECT_EQ(parsed->parameter_steps, manifest.parameter_steps);
  EXPECT_EQ(parsed->values, manifest.values);
  EXPECT_EQ(parsed->filed_values, manifest.filed_values);
  ASSERT_TRUE(parsed->values_file);
  EXPECT_EQ(parsed->values_file->checksums, manifest.values_file->checksums);
}

TEST(Manifests, ThatNoReaderWouldTakeAreRefusedWithTheirSizes) {
  Manifest manifest;
  manifest.parameters = {"p", 100, 64, 3, {{"a", std::vector<uint64_t>(50)}}};
  manifest.values = {{"text", std::string(300, 'x')}};
  const auto length = static_cast<int64_t>(ManifestText(manifest)->size());
  EXPECT_TRUE(ManifestText(manifest, length).ok());
  const absl::Status status = ManifestText(manifest, length - 1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(IoFaultOf(status).error, EFBIG);
  for (const std::string& part :
       {std::to_string(length), std::to_string(length - 1),
        std::string("'parameters' 9"), std::string("'values' 3")}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST(Manifests, ThatNameValuesAndNoFileOfThemAreDamaged) {
  Manifest manifest;
  manifest.filed_values = {{"rng", FiledValue::kBytes}};
  EXPECT_TRUE(absl::IsDataLoss(
      ParseManifest(*ManifestText(manifest), "the/file").status()));
  manifest.filed_values.clear();
  manifest.values_file = {"v", 50, 48, 9, {}};
  EXPECT_TRUE(absl::IsDataLoss(
      ParseManifest(*ManifestText(manifest), "the/file").status()));
}

TEST(Manifests, OfWhichAnyByteChangedAreRefused) {
  Manifest manifest;
  manifest.parameters = {"p", 100, 64, 3, {{"a", {1}}}};
  manifest.values = {{"text", std::string("x")}};
  const std::string text = *ManifestText(manifest);
  for (size_t i = 0; i < text.size(); ++i) {
    for (const int bit : {0, 5}) {
      std::string altered = text;
      altered[i] = static_cast<char>(altered[i] ^ (1 << bit));
      const auto parsed = ParseManifest(altered, "the/file");
      EXPECT_FALSE(parsed.ok()) << "byte " << i;
      EXPECT_THAT(std::string(parsed.status().message()),
                  HasSubstr("the/file"));
    }
    EXPECT_FALSE(ParseManifest(text.substr(0, i), "f").ok()) << i;
  }
  EXPECT_FALSE(ParseManifest(text + " ", "f").ok());
}

TEST(WeightsOfASave, AreItsParameters) {
  TemporaryDirectory folder;
  const std::string bytes = "12345678";
  ASSERT_TRUE(
      SaveCheckpoint(folder.path(),
                     {.parameters = {{.name = "a",
                                      .dtype = StoredDType::kFloat8E8M0,
                                      .shape = {8},
                                      .data = const_cast<char*>(bytes.data())}},
                      .values = {{"epoch", int64_t{3}}}},
                     InAMinute())
          .ok());
  const auto files = WeightFiles::Open(folder.path());
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->tensors().size(), 1u);
  EXPECT_EQ(files->tensors().at("a").dtype,
            StoredDType(StoredDType::kFloat8E8M0));
  std::string read(bytes.size(), '\0');
  const absl::Status status =
      files->Read(files->tensors().at("a"), 0,
                  {reinterpret_cast<std::byte*>(read.data()), read.size()});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(read, bytes);
}

TEST(WeightsOfASave, AreInNoFileThatASaveDoesNotMake) {
  TemporaryDirectory folder;
  SafetensorsWriter writer;
  writer.Add("a", "U8", {1}, "x");
  folder.Write("other", writer.Bytes());
  const auto status_of = [&](const std::string& text) {
    const std::string path = folder.Write("checkpoint.json", text);
    const absl::Status status = WeightFiles::Open(folder.path()).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    return status;
  };
  for (const char* const name : {"other", "../x", "/etc/hostname", "", ".."}) {
    Manifest manifest;
    manifest.parameters = ManifestFile{.name = name};
    const auto text = ManifestText(manifest);
    ASSERT_TRUE(text.ok()) << text.status();
    const absl::Status status = status_of(*text);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no file of"));
    EXPECT_TRUE(absl::IsDataLoss(status_of(text->substr(0, text->size() - 1))));
  }
  const auto none = ManifestText(Manifest());
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(absl::IsDataLoss(status_of(*none)));
  EXPECT_TRUE(absl::IsInvalidArgument(status_of("{}")));
}

}  // namespace
}  // namespace terrace
