// JSON text as a tree that knows its lines. The only file of this folder that
// sees the JSON library; the rest sees this plain value.
//
// Taken besides JSON: comments, as // and as /* */, and a comma after the last
// item. Refused, each in one line
// that names line and column or key: a key that occurs twice in one object,
// NaN and infinities, numbers outside of double, more than 64 levels, text
// after the end.
//
// A value owns all below it. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace terrace {

struct JsonValue {
  enum class Kind : uint8_t {
    kNull,
    kBoolean,
    kInteger,  // written without point or exponent, and within int64_t
    kNumber,   // any other number: finite
    kText,
    kList,
    kObject,
  };

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;  // kInteger too
  std::string text;
  std::string key;               // within the object above
  int line = 0;                  // of its key, from 1; 0: of no text
  std::vector<JsonValue> items;  // of a list, or an object in its order

  // The member of that name, or null.
  const JsonValue* Find(absl::string_view name) const;
};

absl::StatusOr<JsonValue> ParseJson(absl::string_view text);

// As JSON, for messages and comparison: members in their order, no spaces.
std::string JsonText(const JsonValue& value);

// Makes it a value of no text: no message names a line of it.
void ForgetLines(JsonValue* value);

// " (line 3)", or "" where there is none.
std::string LineText(int line);

// A text in quotes, escaped; for messages, so that they stay one line.
std::string QuotedText(const std::string& text);

// At most 80 bytes of it, whole characters.
std::string Shortened(std::string text);

// Round trip of a double: the fewest digits that give it back.
std::string NumberText(double number);

}  // namespace terrace
