#include "libtorch/hook/gradients.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/io_fault.h"
#include "libtorch/hook/collectives.h"
#include "libtorch/hook/managed_storages.h"
#include "libtorch/hook/storage_check.h"
#include "libtorch/hook/window/byte_window.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

// Returns true for a view of a tensor that is too large to be managed, as
// backward of a cat() makes of the gradient of all. That tensor stays whole, in
// the memory that it has had, until the last of its views goes.
bool IsPartOfTooMuch(const at::Tensor& gradient, int64_t most_bytes) {
  return ResidentBytes(static_cast<int64_t>(gradient.storage().nbytes())) >
             most_bytes &&
         ResidentBytes(static_cast<int64_t>(gradient.nbytes())) <= most_bytes;
}

// Returns true when an array of numpy may have the gradient's memory.
bool IsShown(const at::Tensor& gradient) {
  return !StorageOf(gradient)->resizable();
}

}  // namespace

absl::Status ManageGradientOf(const NamedTensor& leaf,
                              ManagedStorages& storages) {
  const at::Tensor& gradient = leaf.tensor.grad();
  if (!gradient.defined() || gradient.layout() != at::kStrided ||
      storages.closed() || storages.Find(gradient) != nullptr ||
      IsShown(gradient) ||
      IsPartOfTooMuch(gradient, storages.window().room().most_bytes()) ||
      // A collective uses the memory, which must not end here.
      !Collectives::Get().CheckUnused(leaf.name, *StorageOf(gradient)).ok()) {
    return absl::OkStatus();
  }
  const std::string name = absl::StrCat(leaf.name, ".grad");
  const std::shared_ptr<ManagedStorage> parameter = storages.Find(leaf.tensor);
  absl::Status status = storages.Add({{name, gradient}}, parameter.get());
  // An earlier gradient that is not gone yet has the name. However many are
  // kept, no number is tried twice.
  while (absl::IsAlreadyExists(status)) {
    status = storages.Add(
        {{absl::StrCat(name, " ", storages.NextNumber()), gradient}},
        parameter.get());
  }
  // The gradient stays in ordinary memory until the next backward pass when the
  // hook closes meanwhile, and where leased tensors have all the room.
  if (status.ok() || storages.closed() || IsNoRoom(status)) {
    return absl::OkStatus();
  }
  status =
      Reworded(status, absl::StrCat("'", name, "' ",
                                    FormatBytes(static_cast<int64_t>(
                                        gradient.storage().nbytes())),
                                    ": ", absl::string_view(status.message())));
  storages.NoteError(status);
  return status;
}

Gradients::Gradients(Manage manage) : manage_(std::move(manage)) {}

Gradients::~Gradients() = default;

absl::Status Gradients::Add(absl::Span<const NamedTensor> leaves,
                            Frozen frozen) {
  for (const auto& [name, leaf] : leaves) {
    if (!leaf.defined() || !leaf.is_leaf() ||
        (!leaf.requires_grad() && frozen == Frozen::kRefused)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", name, "' is no leaf that requires a gradient"));
    }
  }
  for (const NamedTensor& leaf : leaves) {
    if (std::any_of(
            watched_.begin(), watched_.end(),
            [&](const LeafHook& each) { return each.IsOf(leaf.tensor); })) {
      continue;
    }
    watched_.emplace_back(leaf.tensor,
                          [leaf, manage = manage_] { return manage(leaf); });
  }
  return absl::OkStatus();
}

}  // namespace terrace
