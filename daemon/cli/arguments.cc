#include "daemon/cli/arguments.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace terrace::cli {
namespace {

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsOption(const std::string& word) {
  return word.size() > 2 && word.compare(0, 2, "--") == 0;
}

}  // namespace

absl::StatusOr<Arguments> ParseArguments(
    const std::vector<std::string>& text, const std::vector<std::string>& flags,
    const std::vector<std::string>& valued,
    const std::vector<std::string>& listed) {
  Arguments parsed;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string& word = text[i];
    if (word == "--") {
      parsed.words.insert(parsed.words.end(),
                          text.begin() + static_cast<ptrdiff_t>(i) + 1,
                          text.end());
      break;
    }
    if (!IsOption(word)) {
      if (word.size() > 1 && word[0] == '-') {
        return absl::InvalidArgumentError(absl::StrCat("no option ", word));
      }
      parsed.words.push_back(word);
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name =
        word.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::string value;
    if (Contains(flags, name)) {
      if (equals != std::string::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", name, " takes no value"));
      }
    } else if (!Contains(valued, name) && !Contains(listed, name)) {
      return absl::InvalidArgumentError(absl::StrCat("no option ", word));
    } else if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (i + 1 < text.size()) {
      value = text[++i];
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " needs a value"));
    }
    if (Contains(listed, name)) {
      parsed.lists[name].push_back(value);
    } else if (!parsed.options.emplace(name, value).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " is there twice"));
    }
  }
  return parsed;
}

}  // namespace terrace::cli
