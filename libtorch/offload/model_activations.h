// The activations of a model of LibTorch's C++ modules.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "libtorch/offload/activations/activations.h"
#include "libtorch/offload/offload_place.h"
#include "terrace/torch/offload.h"

namespace terrace {

// Before anything is made, where they are asked for: Unimplemented: a parameter
// that is to stay where it is is not in CPU memory, or what InstallSavingEngine
// says.
absl::Status PrepareActivations(const ::torch::nn::Module& model,
                                const OffloadOptions& options);

// Over the place's hook, which they do not keep alive; the model's parameters
// and buffers stay in memory. Null: they are not asked for.
std::shared_ptr<Activations> MakeActivations(
    const ::torch::nn::Module& model, const OffloadOptions& options,
    const std::shared_ptr<OffloadPlace>& place);

}  // namespace terrace
