// A Spill has memory beside the Runtime's for the tensors of one operation that
// together exceed what the Runtime has for operations. Each of them is brought,
// moves to memory of its own, and so makes room for the next. As soon as no
// operation has such a tensor any more, its bytes go back, if it was written
// to, and its memory is freed.
//
// A Spill is thread-safe; a tensor's word is the caller's.
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

  // Moves a tensor that the Runtime has pinned, with its word in loading, to
  // memory of its own, and ends the pin. Returns false when there is no memory
  // or no storage, and changes nothing.
  bool Take(WindowTensor& tensor);
  // Gives the bytes of a tensor that was written to back to the Runtime; they
  // stay installed. After an error nothing has changed.
  absl::Status WriteBack(WindowTensor& tensor,
                         RuntimeBytes::MakeRoom make_room);
  // Frees the tensor's memory, if it has any; its bytes are not installed any
  // more.
  void Drop(WindowTensor& tensor);

  int64_t used_bytes() const {
    return used_bytes_.load(std::memory_order_relaxed);
  }

 private:
  const RuntimeBytes& bytes_;
  std::atomic<int64_t> used_bytes_ = 0;
};

}  // namespace terrace
