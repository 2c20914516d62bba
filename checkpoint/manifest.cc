#include "checkpoint/manifest.h"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "checkpoint/file.h"
#include "checkpoint/json_bounds.h"
#include "kernels/checksum.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "terrace checkpoint";
// In version 1 all values lie in the text, and tensors have a DType.
constexpr int64_t kOldestVersion = 1;
constexpr int64_t kVersion = 2;
constexpr char kBeforeChecksum[] = "{\"checksum\":\"";
constexpr char kBeforeObject[] = "\",\"checkpoint\":";
constexpr char kAfterObject[] = "}\n";
constexpr size_t kDigits = 16;

std::string Hex(uint64_t checksum) {
  return absl::StrFormat("%016x", checksum);
}

std::optional<uint64_t> FromHex(absl::string_view digits) {
  uint64_t value = 0;
  if (digits.size() != kDigits) return std::nullopt;
  for (const char c : digits) {
    const bool decimal = c >= '0' && c <= '9';
    if (!decimal && !(c >= 'a' && c <= 'f')) return std::nullopt;
    value =
        value << 4 | static_cast<uint64_t>(decimal ? c - '0' : c - 'a' + 10);
  }
  return value;
}

Json FileJson(const ManifestFile& file) {
  Json checksums = Json::object();
  for (const auto& [tensor, blocks] : file.checksums) {
    std::string digits;
    for (const uint64_t block : blocks) digits += Hex(block);
    checksums[tensor] = digits;
  }
  return {{"name", file.name},
          {"bytes", file.size_bytes},
          {"header_bytes", file.header_bytes},
          {"header_checksum", Hex(file.header_checksum)},
          {"block_checksums", std::move(checksums)}};
}

// One that lies in a file is {"file": "string"} or {"file": "bytes"}.
constexpr char kFiledKey[] = "file";

const char* FiledKind(FiledValue value) {
  return value == FiledValue::kText ? "string" : "bytes";
}

// Whether `json` is of one that lies in a file.
bool ParseFiledValue(const Json& json, FiledValue* value) {
  if (!json.is_object() || json.size() != 1 || !json.contains(kFiledKey)) {
    return false;
  }
  for (const FiledValue kind : {FiledValue::kText, FiledValue::kBytes}) {
    if (json[kFiledKey] != FiledKind(kind)) continue;
    *value = kind;
    return true;
  }
  return false;
}

// {"int": 3}, {"double": "0.1"}, {"string": "x"} or {"bytes": "00ff"}.
Json ValueJson(const CheckpointValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return {{"int", *number}};
  }
  if (const auto* number = std::get_if<double>(&value)) {
    return {{"double", absl::StrFormat("%.17g", *number)}};
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    return {{"string", *text}};
  }
  return {{"bytes",
           absl::BytesToHexString(std::get<CheckpointBytes>(value).value)}};
}

std::optional<CheckpointValue> ParseValue(const Json& json) {
  if (!json.is_object() || json.size() != 1) return std::nullopt;
  const std::string kind = json.begin().key();
  const Json& value = *json.begin();
  if (kind == "int" && value.is_number_integer()) {
    // Of the unsigned, those that are no int64.
    if (value.is_number_unsigned() && value.get<int64_t>() < 0) {
      return std::nullopt;
    }
    return value.get<int64_t>();
  }
  if (!value.is_string()) return std::nullopt;
  const std::string text = value.get<std::string>();
  if (kind == "string") return text;
  if (kind == "bytes") {
    CheckpointBytes bytes{absl::HexStringToBytes(text)};
    // The way back shows whether it was hexadecimal.
    if (absl::BytesToHexString(bytes.value) != text) return std::nullopt;
    return bytes;
  }
  double number = 0;
  if (kind == "double" && absl::SimpleAtod(text, &number)) return number;
  return std::nullopt;
}

// The fields of one JSON object, each of which must be there and of its kind;
// the first that is not is kept.
class Fields {
 public:
  Fields(const Json& json, std::string path)
      : json_(json), path_(std::move(path)) {}

  const Json& Get(const char* key, Json::value_t type) {
    static const Json kNull;
    const auto found = json_.find(key);
    if (found != json_.end() &&
        (found->type() == type || (type == Json::value_t::number_integer &&
                                   found->is_number_integer()))) {
      return *found;
    }
    Fail(absl::StrCat("'", key, "' is missing or of another kind"));
    return kNull;
  }
  int64_t Index(const char* key) {
    const Json& value = Get(key, Json::value_t::number_integer);
    if (value.is_number_integer() && value.get<int64_t>() >= 0) {
      return value.get<int64_t>();
    }
    Fail(absl::StrCat("'", key, "' is negative"));
    return 0;
  }
  std::string Text(const char* key) {
    const Json& value = Get(key, Json::value_t::string);
    return value.is_string() ? value.get<std::string>() : "";
  }
  uint64_t Sum(const char* key) {
    const auto value = FromHex(Text(key));
    if (!value) Fail(absl::StrCat("'", key, "' is no checksum"));
    return value.value_or(0);
  }
  void Fail(const std::string& what) {
    if (status_.ok()) {
      status_ = Damaged(path_, what);
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json& json_;
  const std::string path_;
  absl::Status status_;
};

absl::StatusOr<ManifestFile> ParseFile(const Json& json,
                                       const std::string& path) {
  if (!json.is_object()) {
    return Damaged(path, "the description of a file is no object");
  }
  Fields fields(json, path);
  ManifestFile file;
  file.name = fields.Text("name");
  file.size_bytes = fields.Index("bytes");
  file.header_bytes = fields.Index("header_bytes");
  file.header_checksum = fields.Sum("header_checksum");
  const Json& checksums = fields.Get("block_checksums", Json::value_t::object);
  for (const auto& [tensor, digits] : checksums.items()) {
    const std::string text =
        digits.is_string() ? digits.get<std::string>() : "?";
    std::vector<uint64_t>& blocks = file.checksums[tensor];
    for (size_t i = 0; i < text.size(); i += kDigits) {
      const auto block = FromHex(absl::string_view(text).substr(i, kDigits));
      if (!block) {
        fields.Fail(absl::StrCat("tensor '", tensor, "' has no checksums"));
      }
      blocks.push_back(block.value_or(0));
    }
  }
  TERRACE_RETURN_IF_ERROR(fields.status());
  return file;
}

// One file of the optimizer's state is an object, several are an array.
absl::Status ParseFiles(const Json& json, const std::string& path,
                        Manifest* manifest) {
  const auto parameters = json.find("parameters");
  if (parameters != json.end()) {
    TERRACE_ASSIGN_OR_RETURN(manifest->parameters,
                             ParseFile(*parameters, path));
  }
  const auto values = json.find("values_file");
  if (values != json.end()) {
    TERRACE_ASSIGN_OR_RETURN(manifest->values_file, ParseFile(*values, path));
  }
  const auto state = json.find("optimizer");
  if (state == json.end()) return absl::OkStatus();
  const auto add = [&](const Json& file) -> absl::Status {
    TERRACE_ASSIGN_OR_RETURN(ManifestFile parsed, ParseFile(file, path));
    manifest->state.push_back(std::move(parsed));
    return absl::OkStatus();
  };
  if (!state->is_array()) return add(*state);
  for (const Json& file : *state) TERRACE_RETURN_IF_ERROR(add(file));
  return absl::OkStatus();
}

void ParseValues(const Json& values, Fields* fields, Manifest* manifest) {
  for (const auto& [key, value] : values.items()) {
    FiledValue filed;
    if (ParseFiledValue(value, &filed)) {
      manifest->filed_values[key] = filed;
      continue;
    }
    auto parsed = ParseValue(value);
    if (!parsed) fields->Fail(absl::StrCat("value '", key, "' is malformed"));
    if (parsed) manifest->values[key] = *std::move(parsed);
  }
}

absl::StatusOr<Manifest> ParseObject(const Json& json,
                                     const std::string& path) {
  Fields fields(json, path);
  if (fields.Text("format") != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is no checkpoint of Terrace's"));
  }
  const int64_t version = fields.Index("version");
  if (version < kOldestVersion || version > kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has version ", version, ", this program reads ",
                     kOldestVersion, " to ", kVersion));
  }
  Manifest manifest;
  manifest.block_bytes = fields.Index("block_bytes");
  // Whole elements of every dtype.
  const int64_t widest = version == 1 ? 4 : 8;
  if (manifest.block_bytes < widest || manifest.block_bytes % widest != 0 ||
      manifest.block_bytes > kCheckpointBlockBytes) {
    fields.Fail(absl::StrCat("'block_bytes' is ", manifest.block_bytes));
  }
  manifest.step = fields.Index("step");
  if (manifest.step > kMostSteps) {
    fields.Fail(absl::StrCat("'step' is ", manifest.step));
  }
  const Json& steps = fields.Get("parameter_steps", Json::value_t::object);
  for (const auto& [name, step] : steps.items()) {
    if (!step.is_number_integer() || step.get<int64_t>() < 0 ||
        step.get<int64_t>() > kMostSteps) {
      fields.Fail(absl::StrCat("the step of '", name, "' is no count"));
      continue;
    }
    manifest.parameter_steps[name] = step.get<int64_t>();
  }
  ParseValues(fields.Get("values", Json::value_t::object), &fields, &manifest);
  if (json.contains("elsewhere")) {
    for (const Json& name : fields.Get("elsewhere", Json::value_t::array)) {
      if (!name.is_string()) fields.Fail("'elsewhere' has what is no name");
      if (name.is_string())
        manifest.elsewhere.push_back(name.get<std::string>());
    }
  }
  TERRACE_RETURN_IF_ERROR(fields.status());
  TERRACE_RETURN_IF_ERROR(ParseFiles(json, path, &manifest));
  if (manifest.values_file.has_value() == manifest.filed_values.empty()) {
    return Damaged(path, "has values in a file and names none, or the reverse");
  }
  return manifest;
}

absl::Status TooLong(const Json& json, int64_t size_bytes,
                     int64_t longest_bytes) {
  std::string parts;
  for (const auto& [key, value] : json.items()) {
    absl::StrAppend(&parts, parts.empty() ? "" : ", ", "'", key, "' ",
                    value.dump(1).size());
  }
  return WithIoFault(absl::ResourceExhaustedError(
                         absl::StrCat("checkpoint.json would have ", size_bytes,
                                      " bytes, and no reader takes more than ",
                                      longest_bytes, ": ", parts)),
                     {.error = EFBIG});
}

}  // namespace

int64_t Manifest::size_bytes() const {
  int64_t sum = 0;
  for (const ManifestFile* file : files()) sum += file->size_bytes;
  return sum;
}

std::vector<const ManifestFile*> Manifest::files() const {
  std::vector<const ManifestFile*> all;
  if (parameters) all.push_back(&*parameters);
  for (const ManifestFile& file : state) all.push_back(&file);
  if (values_file) all.push_back(&*values_file);
  return all;
}

absl::StatusOr<std::string> ManifestText(const Manifest& manifest,
                                         int64_t longest_bytes) {
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"block_bytes", manifest.block_bytes},
               {"step", manifest.step},
               {"parameter_steps", Json::object()},
               {"values", Json::object()}};
  if (manifest.parameters) json["parameters"] = FileJson(*manifest.parameters);
  if (manifest.state.size() == 1) {
    json["optimizer"] = FileJson(manifest.state[0]);
  }
  for (size_t i = 0; manifest.state.size() > 1 && i < manifest.state.size();
       ++i) {
    json["optimizer"].push_back(FileJson(manifest.state[i]));
  }
  if (manifest.values_file) {
    json["values_file"] = FileJson(*manifest.values_file);
  }
  if (!manifest.elsewhere.empty()) json["elsewhere"] = manifest.elsewhere;
  for (const auto& [name, step] : manifest.parameter_steps) {
    json["parameter_steps"][name] = step;
  }
  for (const auto& [key, value] : manifest.values) {
    json["values"][key] = ValueJson(value);
  }
  for (const auto& [key, value] : manifest.filed_values) {
    json["values"][key] = {{kFiledKey, FiledKind(value)}};
  }
  std::string object;
  try {
    object = json.dump(1);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a name or value is no UTF-8; bytes are saved as CheckpointBytes: ",
        error.what()));
  }
  std::string text =
      absl::StrCat(kBeforeChecksum, Hex(Checksum(object.data(), object.size())),
                   kBeforeObject, object, kAfterObject);
  const auto size_bytes = static_cast<int64_t>(text.size());
  if (size_bytes > longest_bytes)
    return TooLong(json, size_bytes, longest_bytes);
  return text;
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text,
                                       const std::string& path) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, kBeforeChecksum)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": is no checkpoint of Terrace's, or altered at its start"));
  }
  const auto checksum = FromHex(rest.substr(0, kDigits));
  rest.remove_prefix(std::min(rest.size(), kDigits));
  if (!checksum || !absl::ConsumePrefix(&rest, kBeforeObject) ||
      !absl::ConsumeSuffix(&rest, kAfterObject) ||
      Checksum(rest.data(), rest.size()) != *checksum) {
    return Damaged(
        path,
        absl::StrCat("its ", text.size(),
                     " bytes are not what was written: truncated or altered"));
  }
  const absl::Status bounds = CheckJsonBounds(rest);
  if (!bounds.ok()) return Damaged(path, bounds.message());
  const Json json = Json::parse(rest.begin(), rest.end(), nullptr,
                                /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return Damaged(path, "is no JSON object");
  }
  return ParseObject(json, path);
}

}  // namespace terrace
