// Makes modules of LibTorch without memory for their parameters, whose values
// come from elsewhere, as from a checkpoint (OffloadOptions::checkpoint).
// LibTorch's C++ modules are made in memory, and Module::to(torch::kMeta)
// throws for tensors that are there. So each part of a model gives its memory
// back when it is made, and no more than one part is ever in memory:
//
//   for (int64_t i = 0; i < layers; ++i) {
//     blocks->push_back(Block(width));
//     absl::Status status = terrace::MoveParametersToMeta(*blocks[i]);
//   }
#pragma once

#include "absl/status/status.h"

namespace torch::nn {
class Module;
}

namespace terrace {

// Puts the parameters of the module and of those in it on the meta device: they
// stay the same tensors for all that have them, with shape, strides, dtype and
// requires_grad, but have no values, no gradient and no memory. Parameters that
// share a storage go on sharing one. Buffers stay as they are, and so do
// parameters on the meta device. The memory goes back to the system, with the
// rest that malloc holds free. No operation may use the parameters meanwhile.
// Returns InvalidArgument for parameters that are not dense, are lazy views or
// no leaves, or have elements beyond their storage, and for buffers in the
// memory of a parameter, whose values would go with it. Returns
// FailedPrecondition for parameters that are offloaded. Both errors name all of
// these tensors, and nothing changes.
absl::Status MoveParametersToMeta(::torch::nn::Module& module);

}  // namespace terrace
