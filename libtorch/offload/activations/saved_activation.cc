#include "libtorch/offload/activations/saved_activation.h"

#include <c10/util/Exception.h>

#include <string>
#include <utility>

namespace terrace {

SavedActivation::SavedActivation(std::shared_ptr<SavingScope> scope)
    : scope_(std::move(scope)), activations_(scope_->activations()) {}

void SavedActivation::call_pack_hook(const at::Tensor& tensor) {
  const absl::Status status = scope_->Save(tensor);
  TORCH_CHECK(status.ok(), "terrace: ", std::string(status.message()));
  scope_.reset();
  // The tensor itself is not kept: it may have the graph's node, which has this
  // object. Its data is taken by no operation, which would look at bytes that
  // are below.
  saved_ = tensor.tensor_data();
  version_ = saved_._version();
}

at::Tensor SavedActivation::call_unpack_hook() {
  const int64_t version = saved_._version();
  TORCH_CHECK(version == version_,
              "one of the variables needed for gradient computation has been "
              "modified by an inplace operation: [",
              saved_.toString(), " ", saved_.sizes(), "] is at version ",
              version, "; expected version ", version_, " instead.");
  activations_->Use(saved_);
  return saved_;
}

}  // namespace terrace
