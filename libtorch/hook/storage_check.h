// These functions say whether a tensor's storage can be managed, and do what
// has to be done for it first. No operation may use the storage meanwhile.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace terrace {

// The tensor must have a storage.
c10::StorageImpl* StorageOf(const at::Tensor& tensor);

// Returns why the tensor cannot be managed on that device within that budget,
// as the rest of a sentence, or "" when it can.
std::string FaultOf(const at::Tensor& tensor, c10::Device device,
                    int64_t budget_bytes);

// Returns whether LibTorch's allocator for the storage's device made its bytes,
// and nothing else is told of their end.
bool IsOrdinary(c10::StorageImpl& storage);

// Gives a copy that was made lazily its own bytes. Fails with
// ResourceExhausted, which names the tensor, when there is no memory for them.
absl::Status Materialize(const std::string& name, c10::StorageImpl& storage);

}  // namespace terrace
