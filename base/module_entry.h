// The one entry of a module: a shared library that no program links, and that
// is loaded when what it knows is asked for. It stays loaded for good.
//
// Thread-safe, as the loader is.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace terrace {

// The function of that name in that file, which the loader also finds by a name
// without a folder. Unavailable, in one sentence: there is no such file, it
// does not load, or it has no such function.
absl::StatusOr<void*> ModuleEntry(const std::string& file, const char* entry);

// Of the module of that name in the folder of what holds `code` (a program, or
// a library), else from where the loader looks.
absl::StatusOr<void*> ModuleEntryBeside(const void* code,
                                        const std::string& name,
                                        const char* entry);

}  // namespace terrace
