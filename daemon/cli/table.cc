#include "daemon/cli/table.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "daemon/cli/printable.h"

namespace terrace::cli {

void Table::Add(const std::string& label, const std::string& text) {
  if (!text.empty())
    rows_.push_back({Printable(label), Printable(text), false});
}

void Table::AddWhole(const std::string& label, const std::string& text) {
  if (!text.empty()) rows_.push_back({Printable(label), Printable(text), true});
}

std::string Table::Format(int width) const {
  size_t widest = 0;
  for (const Row& row : rows_) widest = std::max(widest, row.label.size());
  const size_t left = widest + 2;
  const size_t columns =
      std::max<size_t>(static_cast<size_t>(width), left + 20);
  std::string out;
  for (const Row& row : rows_) {
    out += row.label + std::string(left - row.label.size(), ' ');
    if (row.is_whole) {
      out += row.text + "\n";
      continue;
    }
    size_t column = left;
    for (const absl::string_view view :
         absl::StrSplit(row.text, ' ', absl::SkipEmpty())) {
      const std::string word(view);
      if (column > left && column + 1 + word.size() > columns) {
        out += '\n';
        out.append(left, ' ');
        column = left;
      }
      if (column > left) {
        out += ' ';
        ++column;
      }
      out += word;
      column += word.size();
    }
    out += "\n";
  }
  return out;
}

std::string Join(const std::vector<std::string>& words,
                 const std::string& separator) {
  std::string joined;
  for (const std::string& word : words) {
    if (word.empty()) continue;
    if (!joined.empty()) joined += separator;
    joined += word;
  }
  return joined;
}

}  // namespace terrace::cli
