// Which instruction set the kernels use: the widest that this processor has,
// chosen at the first call. Results do not depend on it, speed does; a program
// reports its name (InstructionSetName of terrace/machine.h), a test forces one
// after the other.
//
// Thread-safe. A kernel that already runs keeps the set it started with.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "terrace/machine.h"

namespace terrace {

// Those that this build and this processor have, best first; "scalar" is
// always the last.
std::vector<std::string> AvailableInstructionSets();

// From now on uses the named set in the whole process, or the best one for "".
// Unavailable, naming those that there are, if this machine has no such set.
absl::Status ForceInstructionSet(absl::string_view name);

}  // namespace terrace
