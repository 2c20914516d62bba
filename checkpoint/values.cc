#include "checkpoint/values.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/memory.h"
#include "terrace/machine.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

// The text or the bytes of a value; null: a number.
const std::string* PayloadOf(const CheckpointValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return text;
  const auto* bytes = std::get_if<CheckpointBytes>(&value);
  return bytes == nullptr ? nullptr : &bytes->value;
}

std::string TensorNameOf(const std::string& key) {
  return absl::StrCat("value.", key);
}

// Those in checkpoint.json are checked when that is made.
absl::Status CheckText(const std::string& key, const std::string& text) {
  try {
    Json(text).dump();
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("value '", key, "' is no UTF-8; bytes are saved as ",
                     "CheckpointBytes: ", error.what()));
  }
  return absl::OkStatus();
}

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

absl::Status PlaceValues(const CheckpointValues& values, Manifest* manifest) {
  size_t in_json = 0;
  for (const auto& [key, value] : values) {
    const std::string* payload = PayloadOf(value);
    if (payload == nullptr ||
        (payload->size() <= kLongestValueInJson &&
         in_json + payload->size() <= kMostValuesInJson)) {
      in_json += payload == nullptr ? 0 : payload->size();
      manifest->values[key] = value;
      continue;
    }
    const bool is_text = std::holds_alternative<std::string>(value);
    if (is_text) TERRACE_RETURN_IF_ERROR(CheckText(key, *payload));
    manifest->filed_values[key] =
        is_text ? FiledValue::kText : FiledValue::kBytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<ManifestFile> WriteFiledValues(const File& directory,
                                              const std::string& name,
                                              const CheckpointValues& values,
                                              const Manifest& manifest) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [key, kind] : manifest.filed_values) {
    entries.push_back(
        {.name = TensorNameOf(key),
         .dtype = StoredDType::kUInt8,
         .shape = {static_cast<int64_t>(PayloadOf(values.at(key))->size())}});
  }
  TERRACE_ASSIGN_OR_RETURN(
      TensorFileWriter writer,
      TensorFileWriter::Create(directory.fd(), directory.path(), name,
                               std::move(entries)));
  constexpr auto kBlock = static_cast<size_t>(kCheckpointBlockBytes);
  for (const auto& [key, kind] : manifest.filed_values) {
    const absl::Span<const std::byte> bytes =
        BytesOf(*PayloadOf(values.at(key)));
    for (size_t from = 0; from < bytes.size(); from += kBlock) {
      TERRACE_RETURN_IF_ERROR(writer.WriteBlock(
          TensorNameOf(key), static_cast<int64_t>(from / kBlock),
          bytes.subspan(from, kBlock)));
    }
  }
  return writer.Finish();
}

absl::Status CheckFiledValues(const Manifest& manifest,
                              const TensorFileReader& file) {
  bool fits = manifest.filed_values.size() == file.tensors().size();
  for (const auto& [key, kind] : manifest.filed_values) {
    const SafetensorsEntry* entry = file.Find(TensorNameOf(key));
    fits = fits && entry != nullptr && entry->dtype == StoredDType::kUInt8 &&
           entry->shape.size() == 1;
  }
  if (fits) return absl::OkStatus();
  return Damaged(file.path(), "its tensors are not the values that lie there");
}

absl::Status ReadFiledValues(const Manifest& manifest,
                             const TensorFileReader& file,
                             CheckpointValues* values) {
  for (const auto& [key, kind] : manifest.filed_values) {
    const SafetensorsEntry& entry = *file.Find(TensorNameOf(key));
    const int64_t available = AvailableMemoryBytes();
    if (entry.size_bytes > available) {
      return NoMemory(file.path(),
                      absl::StrCat("value '", key, "' has ", entry.size_bytes,
                                   " bytes, and memory has ", available));
    }
    std::string payload;
    payload.reserve(static_cast<size_t>(entry.size_bytes));
    for (int64_t i = 0; i < file.Blocks(entry); ++i) {
      // A block of a file that has none of its bytes is no reason for more.
      const auto count = static_cast<size_t>(file.BlockSize(entry, i));
      payload.resize(payload.size() + count);
      TERRACE_RETURN_IF_ERROR(
          file.ReadBlock(entry, i,
                         {reinterpret_cast<std::byte*>(payload.data()) +
                              payload.size() - count,
                          count}));
    }
    if (kind == FiledValue::kText) {
      (*values)[key] = std::move(payload);
    } else {
      (*values)[key] = CheckpointBytes{std::move(payload)};
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace
