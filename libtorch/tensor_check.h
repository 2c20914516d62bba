// What both doors to LibTorch, terrace_torch and the Python module, ask of a
// tensor before they take its address. Compiled into each of them. Pure
// functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>

#include "terrace/tensor.h"

namespace terrace {

// Nothing: one that the optimizer does not know.
std::optional<DType> DTypeOf(const at::Tensor& tensor);

// Whether a hook has its bytes: they may be away, and what is written to them
// by address alone may be lost. Operations are good for it.
bool IsOffloaded(const at::Tensor& tensor);
// What its hook calls it; empty: none has it.
std::string OffloadedName(const at::Tensor& tensor);

// What the caller can do with tensors that are offloaded.
enum class OffloadedTensors : uint8_t { kRefused, kTaken };

// What is wrong with where a tensor keeps its numbers, as the rest of a
// sentence ("is on meta; ..."), or "".
std::string PlaceFault(const at::Tensor& tensor,
                       OffloadedTensors offloaded = OffloadedTensors::kRefused);

// The same, and what is wrong with its dtype for the optimizer.
std::string StorageFault(
    const at::Tensor& tensor,
    OffloadedTensors offloaded = OffloadedTensors::kRefused);

// The tensor, or a copy with values where autograd left them to be made: of a
// zero tensor or a negated view.
at::Tensor WithOwnValues(at::Tensor tensor);

// As LibTorch prints it.
std::string TextOf(const auto& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace terrace
