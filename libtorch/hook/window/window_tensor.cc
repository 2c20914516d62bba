#include "libtorch/hook/window/window_tensor.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "libtorch/hook/window/fingerprint.h"

namespace terrace {

std::string WindowTensor::Told(absl::string_view what) const {
  return absl::StrCat("terrace: '", name_, "' ", FormatBytes(size_bytes_), ": ",
                      what);
}

absl::Status WindowTensor::CopyIn(std::byte* target, const std::byte* source) {
  std::memcpy(target, source, static_cast<size_t>(size_bytes_));
  return absl::OkStatus();
}

// Activations have even numbers, gradients odd ones.
int64_t WindowTensor::step_number() const {
  const bool is_gradient = gradient_of_.value >= 0;
  const int64_t number = is_gradient ? 2 * gradient_of_.value + 1 : 2 * number_;
  return number > INT32_MAX ? -1 : std::max<int64_t>(number, -1);
}

WindowTensor::Writes WindowTensor::TakeWrites() {
  const bool is_checked = std::exchange(is_checked_, false);
  if (written_.exchange(false, std::memory_order_relaxed) || never_clean_) {
    return Writes::kMarked;
  }
  if (!is_checked || Fingerprint(pin_.data()) == fingerprint_) {
    return Writes::kNone;
  }
  never_clean_ = true;
  return Writes::kUnmarked;
}

}  // namespace terrace
