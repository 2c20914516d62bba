// Operators over lists of tensors, as torch.optim's take on an accelerator
// (aten::_foreach_add_, aten::_fused_adamw_), would have all parameters in a
// device's memory at a time, and nothing there is beyond a budget. These
// functions say which operators can be called for a part of their lists, and
// when they are to be: where what a call takes has not half of its window.
//
// The functions are thread-safe.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/DispatchKey.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "libtorch/hook/life/operation_pins.h"
#include "libtorch/hook/window/byte_window.h"

namespace terrace {

// Where our kernel stands: after autograd, before any device's kernel.
inline constexpr auto kListCallKey = c10::DispatchKey::BackendSelect;

// The operators, and how many arguments they take: those of LibTorch that do
// the same to each element, return nothing or one list, and had no kernel of
// that key at the first call.
const absl::flat_hash_map<std::string, size_t>& ListOperators();

// Returns how many elements each list of the arguments has, but for empty ones;
// 0: there is no list, or their lengths differ.
size_t LengthOf(c10::ArrayRef<c10::IValue> arguments);

// Returns the most bytes that a part takes of the window, unless it has one
// element.
int64_t MostBytesOfPart(ByteWindow& window);

// Returns whether the operation is to be called part by part. The net then pins
// nothing for it, and has the kernel know (OperationNet::IsInParts).
bool NeedsParts(const at::RecordFunction& function, const OperationPins& pins);

}  // namespace terrace
