// What the daemon says of itself, a line each: to the journal where its
// standard error is the journal's, else to standard error. This is the one door
// of spdlog.
//
// Thread-safe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace terrace {

class Log {
 public:
  // Of those below it nothing is said: "debug", "info", "warning", "error".
  static bool IsLevel(absl::string_view level);

  explicit Log(absl::string_view level);
  void SetLevel(absl::string_view level);

  void Info(const std::string& line);
  void Warn(const std::string& line);
  void Error(const std::string& line);
};

}  // namespace terrace
