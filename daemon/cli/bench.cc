#include <limits.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "daemon/cli/commands.h"

namespace terrace::cli {

int RunBench(const std::vector<std::string>& arguments) {
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  if (length <= 0) {
    PrintError("bench", "/proc/self/exe does not tell where this program is");
    return kFailure;
  }
  std::string program(self, static_cast<size_t>(length));
  program.resize(program.rfind('/') + 1);
  program += "terrace-bench";
  std::vector<char*> words = {program.data()};
  for (const std::string& argument : arguments) {
    words.push_back(const_cast<char*>(argument.c_str()));
  }
  words.push_back(nullptr);
  execv(program.c_str(), words.data());
  PrintError("bench", program + ": " + std::strerror(errno));
  return kFailure;
}

}  // namespace terrace::cli
