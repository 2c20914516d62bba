// A WindowTensor without a storage: its bytes are a plain pointer, so that the
// thread sanitiser sees whether the protocol alone guards them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "libtorch/hook/window/byte_window.h"
#include "libtorch/hook/window/window_tensor.h"

namespace terrace {

class FakeTensor final : public WindowTensor {
 public:
  using WindowTensor::WindowTensor;

  std::byte* data = nullptr;      // installed
  std::vector<std::byte> memory;  // of its own, after MoveOut
  std::string refusal;            // the last
  bool has_storage = true;

  absl::Span<std::byte> bytes() const {
    return {data, static_cast<size_t>(size_bytes())};
  }

 private:
  bool Install(std::byte* where) override {
    if (!has_storage) return false;
    data = where;
    return true;
  }
  bool TakeAway() override {
    if (!has_storage) return false;
    data = nullptr;
    return true;
  }
  void Refuse(const std::string& text) override { refusal = text; }
  absl::Status MoveOut() override {
    memory.assign(data, data + size_bytes());
    data = memory.data();
    return absl::OkStatus();
  }
};

// As an operation has it: pinned, brought, used, and let go.
template <typename Use>
absl::Status WithBytes(ByteWindow& window, FakeTensor& tensor, bool writes,
                       const Use& use) {
  absl::Status status;
  const bool is_here = tensor.word().Pin() == Residency::kResident;
  if (is_here) {
    window.NoteUse(tensor, ByteWindow::Caller::kOperation);
  } else {
    status = window.Fetch({&tensor});
  }
  if (writes) tensor.MarkWritten();
  if (status.ok()) use(tensor.bytes());
  window.EndUse(tensor);
  return status;
}

}  // namespace terrace
