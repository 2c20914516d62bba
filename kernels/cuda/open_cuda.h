// Opens a GPU by CUDA's module, libterrace_cuda.so, which is loaded when it is
// first asked for and never unloaded: from the folder of what holds this code
// (a program, or a library), then where the loader looks.
//
// Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/device.h"
#include "kernels/cuda/cuda_calls.h"

namespace terrace {

// `place` is "cuda:0". InvalidArgument: it names no device. Unavailable, in one
// sentence: no module (with where it was looked for), one of another version,
// no driver or no such device (with CUDA's code).
absl::StatusOr<std::shared_ptr<Device>> OpenCuda(absl::string_view place);

// The table of the module in that file, or of the one that is found.
absl::StatusOr<const TerraceCudaCalls*> LoadCuda(const std::string& file);
absl::StatusOr<const TerraceCudaCalls*> LoadCuda();

}  // namespace terrace
