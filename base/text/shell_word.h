// A text in a command that a message tells people to run. Thread-safe.
#pragma once

#include <string>

namespace terrace {

// As one word of a shell's command: quoted where it must be.
std::string ShellWord(const std::string& text);

}  // namespace terrace
