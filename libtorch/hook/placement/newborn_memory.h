// Where the tensors of scopes with an owner (placing.h) are until the operation
// that made them has ended. The functions are thread-safe.
#pragma once

#include <cstddef>

#include "libtorch/hook/placement/placement_memory.h"

namespace terrace {

// The memory of the process in which tensors are born that have an owner. Its
// addresses are as many as the machine has memory, and its pages go back to the
// system with each tensor. Null where there are no such addresses, and in a
// forked child of the process that was the first to ask.
PlacementMemory* NewbornMemory();
// Whether the address is in it, also in a forked child. It takes no lock.
bool IsNewborn(const void* address);
// A tensor's memory there ends. A child keeps its copies: the memory's lock may
// be held there for ever.
void EndNewborn(std::byte* address);

}  // namespace terrace
