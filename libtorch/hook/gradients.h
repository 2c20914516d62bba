// Gradients that are managed as soon as backward has made them, until the
// object's end: a hook behind each leaf's accumulation hands over what `.grad`
// is then, under the leaf's name. What backward or the program adds to it later
// goes through operations, as with any managed tensor.
//
// One thread at a time, and none in backward over these leaves, but for what
// LibTorch's own threads do while it is there.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "libtorch/hook/leaf_hook.h"
#include "terrace/torch/hook.h"

namespace terrace {

class ManagedStorages;

// Manages what the leaf's gradient is now, as its name with ".grad", and with a
// number behind that which no other has where one of before is not gone yet.
// What is managed already, sparse, in use by a collective, or a part of a
// tensor that is too large to be managed, stays as it is, and so does one for
// which there is no room. Else ManagedStorages::Add.
absl::Status ManageGradientOf(const NamedTensor& leaf,
                              ManagedStorages& storages);

class Gradients {
 public:
  // Manages what the leaf's gradient is now; what it returns else ends the
  // backward pass. Lives as long as this or a pass that is under way.
  using Manage = std::function<absl::Status(const NamedTensor& leaf)>;
  explicit Gradients(Manage manage);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // As Hook::ManageGradients. Frozen leaves that are taken have their gradients
  // managed from when they require them.
  enum class Frozen : uint8_t { kRefused, kTaken };
  absl::Status Add(absl::Span<const NamedTensor> leaves,
                   Frozen frozen = Frozen::kRefused);

 private:
  const Manage manage_;
  std::vector<LeafHook> watched_;
};

}  // namespace terrace
