// The door that LibTorch's exceptions do not come through.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <exception>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace terrace {

// Does the work; what it throws becomes Internal, of memory ResourceExhausted,
// with the name of the device. Thread-safe.
template <typename Work>
absl::Status Guarded(c10::Device device, const Work& work) {
  try {
    work();
    return absl::OkStatus();
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat(device.str(), ": ", error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    return absl::InternalError(
        absl::StrCat(device.str(), ": ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(device.str(), ": ", error.what()));
  }
}

}  // namespace terrace
