#include "machine/pseudo_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "terrace/machine.h"

namespace terrace {

namespace fs = std::filesystem;

std::string PseudoFiles::Text(const std::string& path) const {
  std::ifstream file(root_ + path);
  std::stringstream text;
  // A read error (some settings answer EINVAL) ends the text, no more.
  if (file) text << file.rdbuf();
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

std::vector<std::string> PseudoFiles::Lines(const std::string& path) const {
  return absl::StrSplit(Text(path), '\n', absl::SkipEmpty());
}

int64_t PseudoFiles::Number(const std::string& path) const {
  const std::string text = Text(path);
  int64_t number = 0;
  if (text == "max") return kNoLimit;
  return absl::SimpleAtoi(text, &number) ? number : -1;
}

std::string PseudoFiles::Choice(const std::string& path) const {
  const std::string text = Text(path);
  const size_t open = text.find('[');
  const size_t close = text.find(']', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos) return text;
  return text.substr(open + 1, close - open - 1);
}

std::string PseudoFiles::Field(const std::string& path,
                               const std::string& key) const {
  for (const std::string& line : Lines(path)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    if (absl::StripAsciiWhitespace(absl::string_view(line).substr(0, colon)) ==
        key) {
      return std::string(absl::StripAsciiWhitespace(
          absl::string_view(line).substr(colon + 1)));
    }
  }
  return "";
}

bool PseudoFiles::Exists(const std::string& path) const {
  std::error_code error;
  return fs::exists(root_ + path, error);
}

std::vector<std::string> PseudoFiles::Names(const std::string& path) const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(root_ + path, error), end;
       !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string PseudoFiles::Resolve(const std::string& path) const {
  std::error_code error;
  const std::string root =
      root_.empty() ? "" : fs::canonical(root_, error).string();
  if (error) return "";
  const std::string found = fs::canonical(root_ + path, error).string();
  if (error || found.compare(0, root.size(), root) != 0) return "";
  return found.substr(root.size());
}

}  // namespace terrace
