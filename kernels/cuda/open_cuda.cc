#include "kernels/cuda/open_cuda.h"

#include <dlfcn.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_device.h"

namespace terrace {
namespace {

constexpr char kModule[] = "libterrace_cuda.so";

// Of the program or library that this is in; empty: unknown.
std::string OwnFolder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&OwnFolder), &info) == 0) return "";
  const std::string file = info.dli_fname == nullptr ? "" : info.dli_fname;
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash);
}

}  // namespace

absl::StatusOr<const TerraceCudaCalls*> LoadCuda(const std::string& file) {
  void* const module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    return absl::UnavailableError(absl::StrCat("no CUDA module: ", dlerror()));
  }
  using Entry = const TerraceCudaCalls* (*)();
  const auto entry =
      reinterpret_cast<Entry>(dlsym(module, TERRACE_CUDA_CALLS_ENTRY));
  if (entry == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "no CUDA module: ", file, " has no ", TERRACE_CUDA_CALLS_ENTRY));
  }
  const TerraceCudaCalls* const calls = entry();
  if (calls->version != TERRACE_CUDA_CALLS_VERSION) {
    return absl::UnavailableError(
        absl::StrCat("no CUDA module: ", file, " is of version ",
                     calls->version, ", not ", TERRACE_CUDA_CALLS_VERSION));
  }
  return calls;
}

absl::StatusOr<const TerraceCudaCalls*> LoadCuda() {
  const std::string folder = OwnFolder();
  std::string beside;
  if (!folder.empty()) {
    beside = absl::StrCat(folder, "/", kModule);
    auto calls = LoadCuda(beside);
    if (calls.ok()) return calls;
  }
  auto calls = LoadCuda(std::string(kModule));
  if (calls.ok() || beside.empty()) return calls;
  return absl::UnavailableError(
      absl::StrCat(calls.status().message(), "; nor is there ", beside));
}

absl::StatusOr<std::shared_ptr<Device>> OpenCuda(absl::string_view place) {
  constexpr absl::string_view kPrefix = "cuda:";
  int device = -1;
  if (!absl::StartsWith(place, kPrefix) ||
      !absl::SimpleAtoi(place.substr(kPrefix.size()), &device) || device < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", place, "' names no device of CUDA, as cuda:0 does"));
  }
  absl::StatusOr<const TerraceCudaCalls*> calls = LoadCuda();
  if (!calls.ok()) {
    return absl::UnavailableError(
        absl::StrCat(place, ": ", calls.status().message()));
  }
  return CudaDevice::Open(**calls, device);
}

}  // namespace terrace
