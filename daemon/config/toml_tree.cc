#include "daemon/config/toml_tree.h"

#include <toml++/toml.h>

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

TextPosition PositionOf(const toml::source_region& source) {
  return {static_cast<int>(source.begin.line),
          static_cast<int>(source.begin.column)};
}

TomlValue ValueOf(const toml::node& node) {
  TomlValue value;
  value.position = PositionOf(node.source());
  if (const auto* text = node.as_string()) {
    value.kind = TomlValue::Kind::kText;
    value.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = TomlValue::Kind::kInteger;
    value.integer = integer->get();
  } else if (const auto* array = node.as_array()) {
    value.kind = TomlValue::Kind::kArray;
    for (const toml::node& each : *array) value.items.push_back(ValueOf(each));
  } else if (const auto* table = node.as_table()) {
    value.kind = TomlValue::Kind::kTable;
    for (const auto& [key, each] : *table) {
      value.entries.push_back(
          {std::string(key.str()), PositionOf(key.source()), ValueOf(each)});
    }
  }
  return value;
}

}  // namespace

const char* TomlKindName(TomlValue::Kind kind) {
  switch (kind) {
    case TomlValue::Kind::kText:
      return "a text";
    case TomlValue::Kind::kInteger:
      return "an integer";
    case TomlValue::Kind::kArray:
      return "an array";
    case TomlValue::Kind::kTable:
      return "a table";
    case TomlValue::Kind::kOther:
      break;
  }
  return "no text, integer, array or table";
}

std::string Located(absl::string_view file, const TextPosition& position) {
  if (position.line == 0) return std::string(file);
  return absl::StrCat(file, ":", position.line, ":", position.column);
}

absl::StatusOr<TomlValue> ParseToml(absl::string_view text,
                                    absl::string_view file) {
  try {
    return ValueOf(toml::parse(std::string_view(text.data(), text.size())));
  } catch (const toml::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(Located(file, PositionOf(error.source())), ": ",
                     std::string(error.description())));
  }
}

}  // namespace terrace
