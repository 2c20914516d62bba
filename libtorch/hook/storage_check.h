// Whether a tensor's storage can be managed, and what has to be done for it
// first. Of storages that no operation uses meanwhile.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace terrace {

// Of a tensor that has one.
c10::StorageImpl* StorageOf(const at::Tensor& tensor);

// Why it cannot be managed within that budget, as the rest of a sentence, or
// "".
std::string FaultOf(const at::Tensor& tensor, int64_t budget_bytes);

// LibTorch made its memory, and nothing else is told of that.
bool IsOrdinary(c10::StorageImpl& storage);

// Of a copy made lazily, its own bytes. ResourceExhausted, with the name: there
// is no memory for them.
absl::Status Materialize(const std::string& name, c10::StorageImpl& storage);

}  // namespace terrace
