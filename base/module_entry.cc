#include "base/module_entry.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

// Of the program or library that the code is in; empty: it is unknown.
std::string FolderOf(const void* code) {
  Dl_info info;
  if (dladdr(code, &info) == 0) return "";
  const std::string file = info.dli_fname == nullptr ? "" : info.dli_fname;
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash);
}

}  // namespace

absl::StatusOr<void*> ModuleEntry(const std::string& file, const char* entry) {
  void* const module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) return absl::UnavailableError(dlerror());
  void* const found = dlsym(module, entry);
  if (found != nullptr) return found;
  return absl::UnavailableError(absl::StrCat(file, " has no ", entry));
}

absl::StatusOr<void*> ModuleEntryBeside(const void* code,
                                        const std::string& name,
                                        const char* entry) {
  const std::string folder = FolderOf(code);
  if (folder.empty()) return ModuleEntry(name, entry);
  const std::string beside = absl::StrCat(folder, "/", name);
  absl::StatusOr<void*> found = ModuleEntry(beside, entry);
  if (found.ok()) return found;
  const std::string problem(found.status().message());
  found = ModuleEntry(name, entry);
  if (found.ok()) return found;
  return absl::UnavailableError(
      absl::StrCat(found.status().message(), "; and beside: ", problem));
}

}  // namespace terrace
