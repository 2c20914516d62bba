// Memory of LibTorch's allocator, where what moves out of a window goes. A
// kernel that overcommits gives memory that it has not, and kills whoever
// writes there: so what is available is looked at before.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"

namespace terrace {

class OrdinaryMemory {
 public:
  // Of it, for all else that the program does meanwhile.
  static constexpr int64_t kSpareBytes = 64 << 20;

  explicit OrdinaryMemory(std::function<int64_t()> available_bytes)
      : available_bytes_(std::move(available_bytes)) {}

  // ResourceExhausted: for less than these.
  absl::Status CheckRoom(int64_t bytes) const {
    const int64_t available = available_bytes_();
    if (bytes <= available - kSpareBytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory to bring it to: ", FormatBytes(available),
                     " are available"));
  }

 private:
  const std::function<int64_t()> available_bytes_;
};

}  // namespace terrace
