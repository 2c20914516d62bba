// Whether the disks of a plan have the room for what is to go there.
#pragma once

#include "absl/status/status.h"
#include "examples/train_gpt/state_plan.h"

namespace train_gpt {

// The state is taken to be spread as the library begins: evenly, and what a
// path has no room for, on its disk or in its budget, on the others. Paths of
// one file system share its room, with --save and --verify. Far and persistent
// memory take what their budgets have room for; whether that is there, the
// runtime looks at.
//
// NotFound, InvalidArgument, PermissionDenied: a path that is nothing to write
// to, or is given twice; ResourceExhausted: less room than the plan needs.
// Errors name the flag that was given. Changes nothing.
absl::Status CheckDisk(const OffloadPlan& plan);

}  // namespace train_gpt
