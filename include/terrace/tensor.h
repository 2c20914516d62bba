// What Terrace moves: tensors, named ranges of bytes. Plain values; free to
// copy and to use from any thread.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

// Element types. Optimizer state is always kFloat32.
enum class DType : uint8_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// Bytes of one element.
constexpr int64_t DTypeBytes(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

// "fp32", "bf16" or "fp16".
const char* DTypeName(DType dtype);

// Names a tensor within one Runtime; never reused while the Runtime lives.
struct TensorId {
  int64_t value = -1;
  friend bool operator==(TensorId, TensorId) = default;
  friend auto operator<=>(TensorId, TensorId) = default;
};

// A tensor as its owner describes it. The contents are undefined until the
// first Access::kOverwrite.
struct TensorSpec {
  std::string name;           // unique within the Runtime, not empty
  int64_t size_bytes = 0;     // payload, > 0
  int64_t global_offset = 0;  // of its first element in the whole state
  // Of a tensor that is made anew in each step, as an activation is: its number
  // among those in the step, from 0 to INT32_MAX. By it the use of this step's
  // tensor says when the next step's is used. -1: the tensor's id says that.
  int64_t step_number = -1;
};

}  // namespace terrace
