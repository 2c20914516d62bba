#include "tests/examples/command.h"

#include <cstdlib>
#include <fstream>

namespace train_gpt {

std::vector<std::string> TrainGpt(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {TRAIN_GPT};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

ChildResult RunTrainGpt(const std::vector<std::string>& arguments,
                        const ChildOptions& options) {
  return ChildProcess(TrainGpt(arguments), options).Wait();
}

std::vector<std::string> Smallest(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {
      "--layers", "1", "--width",   "64", "--context", "64",     "--seq", "16",
      "--batch",  "1", "--threads", "1",  "--data",    TRAIN_GPT};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
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

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
}

}  // namespace train_gpt
