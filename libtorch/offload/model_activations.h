// The activations of a model of LibTorch's C++ modules.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "libtorch/offload/activations/activations.h"
#include "libtorch/offload/offload_place.h"
#include "terrace/torch/offload.h"

namespace terrace {

// Prepares the process for activations, where `options` ask for them, before
// anything is made. Returns Unimplemented when a parameter that is to stay
// where it is is not in CPU memory, else what InstallSavingEngine returns.
absl::Status PrepareActivations(const ::torch::nn::Module& model,
                                const OffloadOptions& options);

// Makes activations over the place's hook, which they do not keep alive. The
// model's parameters and buffers are none of them. Returns null when `options`
// do not ask for activations.
std::shared_ptr<Activations> MakeActivations(
    const ::torch::nn::Module& model, const OffloadOptions& options,
    const std::shared_ptr<OffloadPlace>& place);

}  // namespace terrace
