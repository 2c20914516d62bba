// Runs train_gpt as a user does.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/child_process.h"

namespace train_gpt {

using terrace::ChildOptions;
using terrace::ChildProcess;
using terrace::ChildResult;

// The program and its arguments.
std::vector<std::string> TrainGpt(const std::vector<std::string>& arguments);

// Runs it to its end.
ChildResult RunTrainGpt(const std::vector<std::string>& arguments,
                        const ChildOptions& options = {});

// Flags of a model of 71 thousand parameters on one thread, and more. It reads
// this program's own file, which needs no search for text.
std::vector<std::string> Smallest(const std::vector<std::string>& more);

// The numbers behind each "loss " of the output.
std::vector<double> LossesOf(const std::string& output);

// Discarded if there is none or it is no JSON.
nlohmann::json ReadJson(const std::string& path);

}  // namespace train_gpt
