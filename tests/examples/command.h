// Runs train_gpt as a user does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace train_gpt {

struct CommandResult {
  int exit_code = -1;
  std::string output;  // standard output
  std::string errors;  // standard error
};

// Runs the program with these arguments through the shell; each is quoted.
CommandResult RunTrainGpt(const std::vector<std::string>& arguments);

// The numbers behind each "loss " of the output.
std::vector<double> LossesOf(const std::string& output);

}  // namespace train_gpt
