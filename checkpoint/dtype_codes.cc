#include "checkpoint/dtype_codes.h"

#include "absl/strings/str_join.h"

namespace terrace {
namespace {

struct Known {
  StoredDType dtype;
  const char* code;
  const char* name;
  int bytes;
};
// By the codes' numbers.
constexpr Known kKnown[] = {
    {StoredDType::kFloat32, "F32", "fp32", 4},
    {StoredDType::kBFloat16, "BF16", "bf16", 2},
    {StoredDType::kFloat16, "F16", "fp16", 2},
    {StoredDType::kFloat64, "F64", "fp64", 8},
    {StoredDType::kComplex64, "C64", "complex64", 8},
    {StoredDType::kInt64, "I64", "int64", 8},
    {StoredDType::kInt32, "I32", "int32", 4},
    {StoredDType::kInt16, "I16", "int16", 2},
    {StoredDType::kInt8, "I8", "int8", 1},
    {StoredDType::kUInt64, "U64", "uint64", 8},
    {StoredDType::kUInt32, "U32", "uint32", 4},
    {StoredDType::kUInt16, "U16", "uint16", 2},
    {StoredDType::kUInt8, "U8", "uint8", 1},
    {StoredDType::kBool, "BOOL", "bool", 1},
    {StoredDType::kFloat8E4M3, "F8_E4M3", "fp8 e4m3", 1},
    {StoredDType::kFloat8E4M3Fnuz, "F8_E4M3FNUZ", "fp8 e4m3fnuz", 1},
    {StoredDType::kFloat8E5M2, "F8_E5M2", "fp8 e5m2", 1},
    {StoredDType::kFloat8E5M2Fnuz, "F8_E5M2FNUZ", "fp8 e5m2fnuz", 1},
    {StoredDType::kFloat8E8M0, "F8_E8M0", "fp8 e8m0", 1},
};

static_assert([] {
  uint8_t number = 0;
  for (const Known& known : kKnown) {
    if (known.dtype.code() != number++) return false;
  }
  return true;
}());

const Known& Of(StoredDType dtype) { return kKnown[dtype.code()]; }

}  // namespace

int64_t DTypeBytes(StoredDType dtype) { return Of(dtype).bytes; }

const char* DTypeName(StoredDType dtype) { return Of(dtype).name; }

const char* SafetensorsCode(StoredDType dtype) { return Of(dtype).code; }

std::optional<StoredDType> DTypeOfSafetensors(absl::string_view code) {
  for (const Known& known : kKnown) {
    if (code == known.code) return known.dtype;
  }
  return std::nullopt;
}

std::string AllSafetensorsCodes() {
  return absl::StrJoin(kKnown, ", ", [](std::string* out, const Known& known) {
    out->append(known.code);
  });
}

}  // namespace terrace
