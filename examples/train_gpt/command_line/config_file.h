// train_gpt's --config: DeepSpeed's JSON beside the command line.
#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "examples/train_gpt/command_line/flags.h"

namespace train_gpt {

// Reads the file `flags->config` and lays it under the flags: a flag fills in
// what the file leaves to it ("auto", or no such key), and one that is in
// `given` and says something else than the file is InvalidArgument, naming
// both. Unimplemented: what train_gpt or Terrace does not have.
absl::Status ApplyConfig(const std::set<std::string>& given, Flags* flags);

}  // namespace train_gpt
