// Runs a test's body once under every instruction set of this machine.
#pragma once

#include <string>

#include "gtest/gtest.h"
#include "kernels/instruction_set.h"

namespace terrace {

// Forces a set while it lives.
class ScopedInstructionSet {
 public:
  explicit ScopedInstructionSet(const std::string& name) {
    const absl::Status status = ForceInstructionSet(name);
    EXPECT_TRUE(status.ok()) << status;
  }
  ~ScopedInstructionSet() { EXPECT_TRUE(ForceInstructionSet("").ok()); }
  ScopedInstructionSet(const ScopedInstructionSet&) = delete;
  ScopedInstructionSet& operator=(const ScopedInstructionSet&) = delete;
};

template <typename Body>
void WithEveryInstructionSet(Body body) {
  for (const std::string& name : AvailableInstructionSets()) {
    SCOPED_TRACE(name);
    const ScopedInstructionSet forced(name);
    body();
  }
}

}  // namespace terrace
