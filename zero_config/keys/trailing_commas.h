// The commas that Hjson takes after the last item of a list or an object, and
// JSON does not. Pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace terrace {

// The text with a space for each comma that stands between an item and a
// closing bracket; comments may stand there too. Texts in quotes stay as they
// are, and so does every other comma, for the parser to refuse. No character
// changes its line or its column.
std::string WithoutTrailingCommas(absl::string_view text);

}  // namespace terrace
