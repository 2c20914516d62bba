// The values of a TOML text with the lines where they stand, so that whoever
// reads them can say where an error is. This is the one door of toml++.
//
// Plain values. ParseToml is thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace terrace {

// Counted from 1, as editors do. 0: in no text.
struct TextPosition {
  int line = 0;
  int column = 0;
};

struct TomlEntry;

struct TomlValue {
  enum class Kind : uint8_t {
    kText,
    kInteger,
    kArray,
    kTable,
    kOther,  // a fraction, a boolean, a date or a time
  };

  Kind kind = Kind::kOther;
  TextPosition position;
  std::string text;                // of a text
  int64_t integer = 0;             // of an integer
  std::vector<TomlValue> items;    // of an array, in its order
  std::vector<TomlEntry> entries;  // of a table, by key
};

struct TomlEntry {
  std::string key;
  TextPosition position;  // of the key
  TomlValue value;
};

// "a text", "an integer", ...: what an error calls a value of that kind.
const char* TomlKindName(TomlValue::Kind kind);

// "/etc/terraced.toml:3:7": where an error is.
std::string Located(absl::string_view file, const TextPosition& position);

// Returns the table that the text is. `file` is what errors call the text.
// InvalidArgument: the text is not TOML; the message begins with the place.
absl::StatusOr<TomlValue> ParseToml(absl::string_view text,
                                    absl::string_view file);

}  // namespace terrace
