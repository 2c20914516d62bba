#include "tests/examples/command.h"

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/examples/temporary_folder.h"

namespace train_gpt {

CommandResult RunTrainGpt(const std::vector<std::string>& arguments) {
  TemporaryFolder folder;
  std::string line = TRAIN_GPT;
  for (const std::string& argument : arguments) line += " '" + argument + "'";
  line += " 2>'" + folder.path() + "/errors'";
  CommandResult result;
  FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    result.output.append(buffer, n);
  }
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::stringstream errors;
  errors << std::ifstream(folder.path() + "/errors").rdbuf();
  result.errors = errors.str();
  return result;
}

std::vector<double> LossesOf(const std::string& output) {
  std::vector<double> losses;
  const std::string key = "  loss ";
  for (size_t at = 0; (at = output.find(key, at)) != std::string::npos;) {
    at += key.size();
    losses.push_back(std::strtod(output.c_str() + at, nullptr));
  }
  return losses;
}

}  // namespace train_gpt
