// What follows a subcommand's name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::cli {

struct Arguments {
  std::vector<std::string> words;              // that are no options
  std::map<std::string, std::string> options;  // "json" -> "", "out" -> "file"
  // Of options that may be there more than once, in their order.
  std::map<std::string, std::vector<std::string>> lists;

  bool Has(const std::string& name) const { return options.count(name) != 0; }
};

// `flags` stand alone, `valued` options take "--name value" or "--name=value";
// as do `listed` ones, as often as wanted; what follows "--" are words.
// InvalidArgument: another option, a value too many or too few, an option twice
// that is not listed.
absl::StatusOr<Arguments> ParseArguments(
    const std::vector<std::string>& text, const std::vector<std::string>& flags,
    const std::vector<std::string>& valued,
    const std::vector<std::string>& listed = {});

}  // namespace terrace::cli
