#include "zero_config/keys/trailing_commas.h"

#include <algorithm>

namespace terrace {
namespace {

constexpr size_t kNone = std::string::npos;

// One past the quote that ends the text whose first quote is at `at`.
size_t EndOfQuoted(const std::string& text, size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return text.size();
}

// One past the comment that begins at `at`; `at` itself where none does.
size_t EndOfComment(const std::string& text, size_t at) {
  if (text.compare(at, 2, "//") == 0) {
    return std::min(text.find('\n', at), text.size());
  }
  if (text.compare(at, 2, "/*") != 0) return at;
  const size_t end = text.find("*/", at + 2);
  return end == kNone ? text.size() : end + 2;
}

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// After these no item has ended.
bool Opens(char c) { return c == '{' || c == '[' || c == ',' || c == ':'; }

}  // namespace

std::string WithoutTrailingCommas(absl::string_view written) {
  std::string text(written.data(), written.size());
  size_t comma = kNone;  // what comes after it is blank so far
  char before = '{';     // the last character that is neither blank nor comment
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    const size_t comment = EndOfComment(text, at);
    if (comment > at || IsBlank(c)) {
      at = std::max(comment, at + 1);
      continue;
    }
    if ((c == '}' || c == ']') && comma != kNone) text[comma] = ' ';
    comma = c == ',' && !Opens(before) ? at : kNone;
    before = c;
    at = c == '"' ? EndOfQuoted(text, at) : at + 1;
  }
  return text;
}

}  // namespace terrace
