#include "zero_config/keys/json_tree.h"

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "zero_config/keys/trailing_commas.h"

namespace terrace {
namespace {

constexpr size_t kMostLevels = 64;

// Characters of the text; counts the line feeds that were taken.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* position, int* line)
      : position_(position), line_(line) {}

  reference operator*() const { return *position_; }
  CountingIterator& operator++() {
    if (*position_ == '\n') ++*line_;
    ++position_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const {
    return position_ == other.position_;
  }
  bool operator!=(const CountingIterator& other) const {
    return !(*this == other);
  }

 private:
  const char* position_;
  int* line_;
};

// Receives the library's events and builds the tree; false ends the parse.
class TreeBuilder {
 public:
  using Json = nlohmann::json;

  explicit TreeBuilder(const int* line) : line_(line) {}

  bool null() { return Add({}); }
  bool boolean(bool value) {
    JsonValue made;
    made.kind = JsonValue::Kind::kBoolean;
    made.boolean = value;
    return Add(std::move(made));
  }
  bool number_integer(Json::number_integer_t value) {
    JsonValue made;
    made.kind = JsonValue::Kind::kInteger;
    made.integer = value;
    made.number = static_cast<double>(value);
    return Add(std::move(made));
  }
  bool number_unsigned(Json::number_unsigned_t value) {
    if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return number_integer(static_cast<int64_t>(value));
    }
    return number_float(static_cast<double>(value), {});
  }
  bool number_float(Json::number_float_t value, const std::string&) {
    JsonValue made;
    made.kind = JsonValue::Kind::kNumber;
    made.number = value;
    return Add(std::move(made));
  }
  bool string(std::string& value) {
    JsonValue made;
    made.kind = JsonValue::Kind::kText;
    made.text = std::move(value);
    return Add(std::move(made));
  }
  bool binary(Json::binary_t&) { return false; }  // not in JSON text
  bool start_object(size_t) { return Open(JsonValue::Kind::kObject); }
  bool start_array(size_t) { return Open(JsonValue::Kind::kList); }
  bool end_object() { return Shut(); }
  bool end_array() { return Shut(); }
  bool key(std::string& name) {
    if (const JsonValue* first = open_.back().Find(name)) {
      status_ = absl::InvalidArgumentError(absl::StrCat(
          "line ", *line_, ": the key ", Shortened(QuotedText(name)),
          " is given twice, first on line ", first->line));
      return false;
    }
    key_ = std::move(name);
    key_line_ = *line_;
    return true;
  }
  bool parse_error(size_t, const std::string&,
                   const nlohmann::detail::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    const std::string what = error.what();
    const size_t end = what.find("] ");
    status_ = absl::InvalidArgumentError(absl::StrCat(
        "not JSON: ", end == std::string::npos ? what : what.substr(end + 2),
        error.id == 406 ? absl::StrCat(", on line ", *line_) : ""));
    return false;
  }

  absl::Status status() const { return status_; }
  JsonValue& root() { return root_; }

 private:
  bool Add(JsonValue value) {
    value.line = *line_;
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    JsonValue& parent = open_.back();
    if (parent.kind == JsonValue::Kind::kObject) {
      value.key = key_;
      value.line = key_line_;
    }
    parent.items.push_back(std::move(value));
    return true;
  }

  // The open value's key and line are set now, before its members change them.
  bool Open(JsonValue::Kind kind) {
    if (open_.size() == kMostLevels) {
      status_ = absl::InvalidArgumentError(absl::StrCat(
          "line ", *line_, ": more than ", kMostLevels, " levels"));
      return false;
    }
    JsonValue value;
    value.kind = kind;
    value.line = *line_;
    if (!open_.empty() && open_.back().kind == JsonValue::Kind::kObject) {
      value.key = key_;
      value.line = key_line_;
    }
    open_.push_back(std::move(value));
    return true;
  }

  bool Shut() {
    JsonValue value = std::move(open_.back());
    open_.pop_back();
    if (open_.empty()) {
      root_ = std::move(value);
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  const int* line_;
  std::vector<JsonValue> open_;
  JsonValue root_;
  std::string key_;
  int key_line_ = 0;
  absl::Status status_;
};

}  // namespace

const JsonValue* JsonValue::Find(absl::string_view name) const {
  if (kind != Kind::kObject) return nullptr;
  for (const JsonValue& item : items) {
    if (item.key == name) return &item;
  }
  return nullptr;
}

absl::StatusOr<JsonValue> ParseJson(absl::string_view written) {
  const std::string text = WithoutTrailingCommas(written);
  int line = 1;
  TreeBuilder builder(&line);
  const bool parsed = nlohmann::json::sax_parse(
      CountingIterator(text.data(), &line),
      CountingIterator(text.data() + text.size(), &line), &builder,
      nlohmann::json::input_format_t::json, /*strict=*/true,
      /*ignore_comments=*/true);
  if (!builder.status().ok()) return builder.status();
  TERRACE_CHECK(parsed);
  return std::move(builder.root());
}

void ForgetLines(JsonValue* value) {
  value->line = 0;
  for (JsonValue& item : value->items) ForgetLines(&item);
}

std::string LineText(int line) {
  return line == 0 ? "" : absl::StrCat(" (line ", line, ")");
}

std::string QuotedText(const std::string& text) {
  const auto replace = nlohmann::json::error_handler_t::replace;
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/false, replace);
}

std::string Shortened(std::string text) {
  constexpr size_t kMost = 80;
  if (text.size() <= kMost) return text;
  size_t end = kMost - 3;
  // Not between the bytes of one character.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
    --end;
  }
  return text.substr(0, end) + "...";
}

std::string NumberText(double number) {
  char text[32];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, number);
    if (std::strtod(text, nullptr) == number) break;
  }
  return text;
}

std::string JsonText(const JsonValue& value) {
  using Kind = JsonValue::Kind;
  switch (value.kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBoolean:
      return value.boolean ? "true" : "false";
    case Kind::kInteger:
      return absl::StrCat(value.integer);
    case Kind::kNumber:
      return NumberText(value.number);
    case Kind::kText:
      return QuotedText(value.text);
    case Kind::kList:
    case Kind::kObject:
      break;
  }
  const bool object = value.kind == Kind::kObject;
  std::string out = object ? "{" : "[";
  for (const JsonValue& item : value.items) {
    if (out.size() > 1) out += ",";
    if (object) absl::StrAppend(&out, QuotedText(item.key), ":");
    out += JsonText(item);
  }
  return out + (object ? "}" : "]");
}

}  // namespace terrace
