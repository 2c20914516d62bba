// The door that LibTorch's exceptions do not come through.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace terrace {

// What LibTorch threw: Internal, of memory ResourceExhausted, with `where`
// before its text. The allocator of CPU memory has no type of its own for what
// it cannot get, but names itself and the bytes.
inline absl::Status StatusOfThrown(absl::string_view where,
                                   const std::exception& thrown) {
  const auto* const error = dynamic_cast<const c10::Error*>(&thrown);
  const absl::string_view text =
      error == nullptr ? thrown.what() : error->what_without_backtrace();
  const bool is_of_memory =
      dynamic_cast<const c10::OutOfMemoryError*>(error) != nullptr ||
      dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr ||
      absl::StrContains(text, "DefaultCPUAllocator: ");
  std::string message = absl::StrCat(where, ": ", text);
  return is_of_memory ? absl::ResourceExhaustedError(message)
                      : absl::InternalError(message);
}

// Does the work, which returns a Status; what LibTorch throws becomes one too.
// Thread-safe.
template <typename Work>
absl::Status Guarded(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return StatusOfThrown("LibTorch", error);
  }
}

// Does the work; what it throws becomes a Status with the name of the device.
// Thread-safe.
template <typename Work>
absl::Status Guarded(c10::Device device, const Work& work) {
  try {
    work();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return StatusOfThrown(device.str(), error);
  }
}

}  // namespace terrace
