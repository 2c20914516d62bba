// Gradients are managed as soon as backward has made them, for as long as a
// Gradients object lives: a hook behind each leaf's accumulation hands over the
// tensor that `.grad` is then, under the leaf's name. Whatever backward or the
// program adds to the gradient later goes through operations, as with any
// managed tensor.
//
// One thread at a time uses a Gradients object, while no thread is in backward
// over its leaves. The calls that LibTorch's own threads make during backward
// are the exception.
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

// Manages the leaf's present gradient, under the leaf's name with ".grad".
// Where an earlier gradient that is not gone yet has this name, a number that
// no other gradient has follows it. A gradient stays as it is, and the result
// is OK, when it is managed already, is sparse, is in use by a collective, may
// have its memory in an array of numpy, or is a part of a tensor that is too
// large to be managed; when there is no room for it; and when the hook is
// closed. Other errors are those of ManagedStorages::Add.
absl::Status ManageGradientOf(const NamedTensor& leaf,
                              ManagedStorages& storages);

class Gradients {
 public:
  // Manages the leaf's present gradient. A status other than OK ends the
  // backward pass. The function lives as long as this object, or a graph over
  // one of the leaves.
  using Manage = std::function<absl::Status(const NamedTensor& leaf)>;
  explicit Gradients(Manage manage);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // Add does what Hook::ManageGradients describes. kTaken accepts frozen leaves
  // as well, whose gradients are managed from when the leaves require them.
  enum class Frozen : uint8_t { kRefused, kTaken };
  absl::Status Add(absl::Span<const NamedTensor> leaves,
                   Frozen frozen = Frozen::kRefused);

 private:
  const Manage manage_;
  std::vector<LeafHook> watched_;
};

}  // namespace terrace
