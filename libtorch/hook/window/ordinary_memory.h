// Tensors that move out of a window go to memory of LibTorch's allocator. A
// kernel that overcommits gives out memory that it does not have, and kills the
// process that writes there, so OrdinaryMemory first looks at what is
// available.
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
  // This much is left for all else that the program does meanwhile.
  static constexpr int64_t kSpareBytes = 64 << 20;

  explicit OrdinaryMemory(std::function<int64_t()> available_bytes)
      : available_bytes_(std::move(available_bytes)) {}

  // Returns ResourceExhausted when fewer than `bytes` and the spare ones are
  // available.
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
