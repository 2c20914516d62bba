// Memory files: memory that has a descriptor, by which another process may have
// it too, of a size that nobody can change, so that no access to a mapping of
// it ever fails. Only this user may open one again. It has pages where it was
// touched. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/process.h"

namespace terrace {

// Not ok(), and errno is set: there is no descriptor to be had. `name`: as
// /proc tells it.
OwnDescriptor MakeMemoryFile(const char* name, int64_t size_bytes);

// A file of that size which nobody can change.
bool IsMemoryFile(const OwnDescriptor& file, int64_t size_bytes);

// All of it, to be read and written, and not in a child. Null, and errno is
// set: there are no such addresses.
std::byte* MapMemoryFile(const OwnDescriptor& file, int64_t size_bytes);

}  // namespace terrace
