#include "libtorch/stored_dtypes.h"

#include <utility>

#include "base/check.h"

namespace terrace {
namespace {

constexpr std::pair<StoredDType::Code, at::ScalarType> kTypes[] = {
    {StoredDType::kFloat32, at::kFloat},
    {StoredDType::kBFloat16, at::kBFloat16},
    {StoredDType::kFloat16, at::kHalf},
    {StoredDType::kFloat64, at::kDouble},
    {StoredDType::kComplex64, at::kComplexFloat},
    {StoredDType::kInt64, at::kLong},
    {StoredDType::kInt32, at::kInt},
    {StoredDType::kInt16, at::kShort},
    {StoredDType::kInt8, at::kChar},
    {StoredDType::kUInt64, at::kUInt64},
    {StoredDType::kUInt32, at::kUInt32},
    {StoredDType::kUInt16, at::kUInt16},
    {StoredDType::kUInt8, at::kByte},
    {StoredDType::kBool, at::kBool},
    {StoredDType::kFloat8E4M3, at::kFloat8_e4m3fn},
    {StoredDType::kFloat8E4M3Fnuz, at::kFloat8_e4m3fnuz},
    {StoredDType::kFloat8E5M2, at::kFloat8_e5m2},
    {StoredDType::kFloat8E5M2Fnuz, at::kFloat8_e5m2fnuz},
    {StoredDType::kFloat8E8M0, at::kFloat8_e8m0fnu},
};

}  // namespace

std::optional<StoredDType> StoredDTypeOf(at::ScalarType type) {
  for (const auto& [stored, scalar] : kTypes) {
    if (scalar == type) return StoredDType(stored);
  }
  return std::nullopt;
}

at::ScalarType ScalarTypeOf(StoredDType dtype) {
  for (const auto& [stored, scalar] : kTypes) {
    if (stored == dtype.code()) return scalar;
  }
  TERRACE_CHECK(false);
  return at::ScalarType::Undefined;
}

}  // namespace terrace
