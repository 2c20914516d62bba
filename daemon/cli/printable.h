// Names as a terminal can have them.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace terrace::cli {

// The text with "\x1b" in place of each byte of a control character, of what
// is no UTF-8, and of what turns the direction of a line: names are a job's or
// a file's to choose, and no terminal is to obey them.
std::string Printable(absl::string_view text);

}  // namespace terrace::cli
