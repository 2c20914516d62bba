// The element types that a checkpoint's tensors may have: those that
// safetensors names. The optimizer steps three of them, which DType has; from
// a DType one is made without a word:
//
//   CheckpointTensor{.name = "weight", .dtype = DType::kBFloat16, ...}
//   CheckpointTensor{.name = "mask", .dtype = StoredDType::kBool, ...}
//
// Plain values; free to copy and to use from any thread.
#pragma once

#include <cstdint>

#include "terrace/tensor.h"

namespace terrace {

class StoredDType {
 public:
  enum Code : uint8_t {
    kFloat32,
    kBFloat16,
    kFloat16,
    kFloat64,
    kComplex64,  // two fp32
    kInt64,
    kInt32,
    kInt16,
    kInt8,
    kUInt64,
    kUInt32,
    kUInt16,
    kUInt8,
    kBool,  // a byte, 0 or 1
    kFloat8E4M3,
    kFloat8E4M3Fnuz,
    kFloat8E5M2,
    kFloat8E5M2Fnuz,
    kFloat8E8M0,  // a power of two: the scale of a block
  };

  constexpr StoredDType(Code code) : code_(code) {}
  constexpr StoredDType(DType dtype)
      : code_(dtype == DType::kFloat32    ? kFloat32
              : dtype == DType::kBFloat16 ? kBFloat16
                                          : kFloat16) {}

  constexpr Code code() const { return code_; }
  friend bool operator==(StoredDType, StoredDType) = default;

 private:
  Code code_;
};

// Bytes of one element: 1, 2, 4 or 8.
int64_t DTypeBytes(StoredDType dtype);

// "fp32", "int64", "bool", "fp8 e4m3", ...
const char* DTypeName(StoredDType dtype);

}  // namespace terrace
