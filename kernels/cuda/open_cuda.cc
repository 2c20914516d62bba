#include "kernels/cuda/open_cuda.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/module_entry.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_device.h"

namespace terrace {
namespace {

constexpr char kModule[] = "libterrace_cuda.so";

absl::Status NoModule(absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("no CUDA module: ", why));
}

absl::StatusOr<const TerraceCudaCalls*> CallsOf(
    const absl::StatusOr<void*>& entry) {
  if (!entry.ok()) return NoModule(entry.status().message());
  const TerraceCudaCalls* const calls =
      reinterpret_cast<const TerraceCudaCalls* (*)()>(*entry)();
  if (calls->version == TERRACE_CUDA_CALLS_VERSION) return calls;
  return NoModule(absl::StrCat("it is of version ", calls->version, ", not ",
                               TERRACE_CUDA_CALLS_VERSION));
}

}  // namespace

absl::StatusOr<const TerraceCudaCalls*> LoadCuda(const std::string& file) {
  return CallsOf(ModuleEntry(file, TERRACE_CUDA_CALLS_ENTRY));
}

absl::StatusOr<const TerraceCudaCalls*> LoadCuda() {
  return CallsOf(ModuleEntryBeside(reinterpret_cast<const void*>(&NoModule),
                                   kModule, TERRACE_CUDA_CALLS_ENTRY));
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
