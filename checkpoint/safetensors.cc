#include "checkpoint/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/dtype_codes.h"
#include "checkpoint/json_bounds.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr char kMetadataKey[] = "__metadata__";
constexpr int64_t kMostElements = int64_t{1} << 60;

absl::Status CheckNames(absl::Span<const SafetensorsEntry> tensors) {
  std::unordered_set<std::string> seen;
  for (const SafetensorsEntry& tensor : tensors) {
    if (tensor.name.empty() || tensor.name == kMetadataKey) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", tensor.name, "' cannot be a tensor's name"));
    }
    if (!seen.insert(tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "there are two tensors of the name '", tensor.name, "'"));
    }
  }
  return absl::OkStatus();
}

absl::Status BadEntry(const std::string& name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "' ", what));
}

bool IsIndex(const Json& value) {
  return value.is_number_unsigned() &&
         value.get<uint64_t>() <= static_cast<uint64_t>(4 * kMostElements);
}

// With an offset that counts from the end of the header.
absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name,
                                            const Json& value) {
  SafetensorsEntry entry;
  entry.name = name;
  if (!value.is_object() || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    return BadEntry(name, "lacks dtype, shape or data_offsets");
  }
  const Json& dtype = value["dtype"];
  const Json& shape = value["shape"];
  const Json& offsets = value["data_offsets"];
  const auto known = dtype.is_string()
                         ? DTypeOfSafetensors(dtype.get<std::string>())
                         : std::nullopt;
  if (!known) {
    // What others wrote may be nested deeper than a stack is.
    const std::string shown =
        dtype.is_string()
            ? absl::StrCat("\"", dtype.get<std::string>().substr(0, 64), "\"")
            : absl::StrCat("(", dtype.type_name(), ")");
    return BadEntry(name,
                    absl::StrCat("has dtype ", shown, ", which is none of ",
                                 AllSafetensorsCodes()));
  }
  entry.dtype = *known;
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), IsIndex)) {
    return BadEntry(name, "has a shape that is no list of sizes");
  }
  for (const Json& size : shape) entry.shape.push_back(size.get<int64_t>());
  if (!offsets.is_array() || offsets.size() != 2 || !IsIndex(offsets[0]) ||
      !IsIndex(offsets[1])) {
    return BadEntry(name, "has data_offsets that are not two offsets");
  }
  entry.offset = offsets[0].get<int64_t>();
  entry.size_bytes = offsets[1].get<int64_t>() - entry.offset;
  const int64_t count = ElementCount(entry.shape);
  if (count < 0 || count > kMostElements / DTypeBytes(entry.dtype) ||
      entry.size_bytes != count * DTypeBytes(entry.dtype)) {
    return BadEntry(
        name, absl::StrCat("is ", ShapeText(entry.dtype, entry.shape), " in ",
                           entry.size_bytes, " bytes"));
  }
  return entry;
}

}  // namespace

int64_t ElementCount(absl::Span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (size < 0) return -1;
  }
  for (const int64_t size : shape) {
    if (size == 0) return 0;
  }
  for (const int64_t size : shape) {
    if (size > kMostElements / count) return -1;
    count *= size;
  }
  return count;
}

std::string ShapeText(StoredDType dtype, absl::Span<const int64_t> shape) {
  return absl::StrCat(DTypeName(dtype), " [", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<std::string> MakeSafetensorsHeader(
    std::vector<SafetensorsEntry> tensors, SafetensorsHeader* header) {
  TERRACE_RETURN_IF_ERROR(CheckNames(tensors));
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                     return DTypeBytes(a.dtype) > DTypeBytes(b.dtype);
                   });
  Json json = Json::object();
  int64_t end = 0;
  for (SafetensorsEntry& tensor : tensors) {
    const int64_t count = ElementCount(tensor.shape);
    if (count < 0 || end > kMostElements) {
      return BadEntry(
          tensor.name,
          absl::StrCat("cannot be ", ShapeText(tensor.dtype, tensor.shape)));
    }
    tensor.offset = end;
    tensor.size_bytes = count * DTypeBytes(tensor.dtype);
    end += tensor.size_bytes;
    json[tensor.name] = {{"dtype", SafetensorsCode(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"data_offsets", {tensor.offset, end}}};
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor's name is no UTF-8: ", error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const auto length = static_cast<uint64_t>(text.size());
  if (length > kLongestSafetensorsHeader) {
    return absl::InvalidArgumentError(
        absl::StrCat("the names of ", tensors.size(), " tensors are ", length,
                     " bytes, more than a safetensors header may have"));
  }
  std::string bytes(kSafetensorsLengthBytes, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(length >> (8 * i));
  }
  bytes += text;
  header->header_bytes = static_cast<int64_t>(bytes.size());
  header->file_bytes = header->header_bytes + end;
  for (SafetensorsEntry& tensor : tensors) {
    tensor.offset += header->header_bytes;
  }
  header->tensors = std::move(tensors);
  return bytes;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    absl::string_view text) {
  TERRACE_RETURN_IF_ERROR(CheckJsonBounds(text));
  const Json json = Json::parse(text.begin(), text.end(), nullptr,
                                /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("its header is no JSON object");
  }
  SafetensorsHeader header;
  header.header_bytes =
      kSafetensorsLengthBytes + static_cast<int64_t>(text.size());
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) continue;
    TERRACE_ASSIGN_OR_RETURN(SafetensorsEntry entry, ParseEntry(name, value));
    header.tensors.push_back(std::move(entry));
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::pair(a.offset, a.size_bytes) <
                     std::pair(b.offset, b.size_bytes);
            });
  int64_t end = 0;
  for (SafetensorsEntry& entry : header.tensors) {
    if (entry.offset != end) {
      return BadEntry(entry.name,
                      absl::StrCat("is at data offset ", entry.offset,
                                   ", the one before it ends at ", end));
    }
    end += entry.size_bytes;
    entry.offset += header.header_bytes;
  }
  header.file_bytes = header.header_bytes + end;
  return header;
}

}  // namespace terrace
