// Memory beside the Runtime's, for tensors of one operation that exceed
// together what the Runtime has for operations: each is brought, moves to
// memory of its own, and so makes room for the next. As soon as no operation
// has one of them it goes back, if it was written to, and its memory with it.
//
// Thread-safe; a tensor's word is the caller's.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "libtorch/hook/window/runtime_bytes.h"
#include "libtorch/hook/window/window_tensor.h"

namespace terrace {

class Spill {
 public:
  explicit Spill(const RuntimeBytes& bytes) : bytes_(bytes) {}

  // Of a tensor that the Runtime has pinned, its word in loading: its bytes are
  // in memory of its own from here on, and the pin has ended. False, and
  // nothing changes: there is no memory, or no storage.
  bool Take(WindowTensor& tensor);
  // Its bytes, if it was written to, are the Runtime's again; they stay
  // installed. After an error nothing has changed.
  absl::Status WriteBack(WindowTensor& tensor,
                         RuntimeBytes::MakeRoom make_room);
  // Frees its memory, if it has any: the bytes are not installed any more.
  void Drop(WindowTensor& tensor);

  int64_t used_bytes() const {
    return used_bytes_.load(std::memory_order_relaxed);
  }

 private:
  const RuntimeBytes& bytes_;
  std::atomic<int64_t> used_bytes_ = 0;
};

}  // namespace terrace
