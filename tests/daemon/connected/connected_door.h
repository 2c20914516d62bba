// Puts a connection between a test and its runtime: a socket, a session as a
// daemon has it, and Runtime::Connect.
#pragma once

#include <memory>

#include "tests/support/runtime_fixture.h"

namespace terrace {

ReachedRuntime ConnectTo(std::unique_ptr<LocalRuntime> runtime);

}  // namespace terrace
