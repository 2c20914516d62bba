// The kernels once for every vector instruction set with fused multiply-add:
// this file and its two -inl.h are the only ones that include Highway, which
// compiles them again for each of them.
//
// Every operation is one IEEE operation per element (add, multiply, fma,
// division and square root are correctly rounded), nothing is added across
// lanes but the norm's sixteen, and a range's last elements, too few for a
// vector, are the scalar kernels'. So all sets and all splits agree.
#include <cstdint>

#include "kernels/cpu/float16.h"
#include "kernels/cpu/kernel_table.h"

#define HWY_DISABLED_TARGETS                                               \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | \
   HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/vector_kernels.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, as Highway requires.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/adam-inl.h"
#include "kernels/cpu/stored_types-inl.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace terrace::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A block is whole vectors, two at a time, and whole rows of the norm's lanes.
static_assert(kBlock % (2 * hn::MaxLanes(F32())) == 0);
static_assert(kBlock % kNormLanes == 0);
static_assert(kGroup % kBlock == 0);

// Sixteen fp32 values are added to sixteen lanes of double, whatever the width
// of a vector is: `parts` of them hold these lanes.
template <typename Type>
double SumSquaresOf(const typename Type::Stored* values, int64_t count) {
  const F32 d;
  const hn::ScalableTag<double> wide;
  const hn::Half<F32> half;
  using Wide = hn::Vec<decltype(wide)>;
  constexpr int kParts = kNormLanes / hn::MaxLanes(hn::ScalableTag<double>());
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  Wide sums[kParts];
  for (Wide& sum : sums) sum = hn::Zero(wide);
  int64_t i = 0;
  const auto add = [&](int64_t from) HWY_ATTR {
    for (int part = 0; part < kParts; part += 2) {
      const V value = Type::Load(values + from + part / 2 * lanes);
      const Wide low = hn::PromoteTo(wide, hn::LowerHalf(half, value));
      const Wide high = hn::PromoteTo(wide, hn::UpperHalf(half, value));
      sums[part] = hn::MulAdd(low, low, sums[part]);
      sums[part + 1] = hn::MulAdd(high, high, sums[part + 1]);
    }
  };
  for (; i + kBlock <= count; i += kBlock) {
    PrefetchAhead(values + i, kAheadBytesAlone);
    for (int64_t j = 0; j < kBlock; j += kNormLanes) add(i + j);
  }
  if (i + kNormLanes <= count) {
    add(i);
    i += kNormLanes;
  }
  double sum_of_lane[kNormLanes];
  for (int part = 0; part < kParts; ++part) {
    hn::StoreU(sums[part], wide, sum_of_lane + part * (kNormLanes / kParts));
  }
  for (; i < count; ++i) {
    const double x = Type::Widen(values[i]);
    sum_of_lane[i % kNormLanes] += x * x;
  }
  return SumNormLanes(sum_of_lane);
}

double SumSquares(const void* values, DType dtype, int64_t count) {
  switch (dtype) {
    case DType::kFloat32:
      return SumSquaresOf<Float32>(static_cast<const float*>(values), count);
    case DType::kBFloat16:
      return SumSquaresOf<BFloat16>(static_cast<const uint16_t*>(values),
                                    count);
    case DType::kFloat16:
      return SumSquaresOf<Float16>(static_cast<const uint16_t*>(values), count);
  }
  return 0;
}

template <typename From, typename To>
int64_t Convert(const typename From::Stored* source,
                typename To::Stored* target, int64_t count) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(F32()));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    To::Store(From::Load(source + i), target + i);
  }
  return i;
}

void Narrow(DType dtype, const float* source, uint16_t* target, int64_t count) {
  const int64_t done = dtype == DType::kBFloat16
                           ? Convert<Float32, BFloat16>(source, target, count)
                           : Convert<Float32, Float16>(source, target, count);
  ScalarKernels().narrow(dtype, source + done, target + done, count - done);
}

void Widen(DType dtype, const uint16_t* source, float* target, int64_t count) {
  const int64_t done = dtype == DType::kBFloat16
                           ? Convert<BFloat16, Float32>(source, target, count)
                           : Convert<Float16, Float32>(source, target, count);
  ScalarKernels().widen(dtype, source + done, target + done, count - done);
}

template <StreamKind kKind>
int64_t StreamOf(float* p, const float* g, float* m, float* v, int64_t count) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto store = [d](V value, float* at) HWY_ATTR {
    if constexpr (kKind == StreamKind::kNonTemporal) {
      hn::Stream(value, d, at);
    } else {
      hn::StoreU(value, d, at);
    }
  };
  const auto move = [&](int64_t i) HWY_ATTR {
    const V by = hn::LoadU(d, g + i);
    store(hn::Xor(hn::LoadU(d, p + i), by), p + i);
    store(hn::Xor(hn::LoadU(d, m + i), by), m + i);
    store(hn::Xor(hn::LoadU(d, v + i), by), v + i);
  };
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    if constexpr (kKind == StreamKind::kPrefetched) {
      PrefetchAhead(p + i);
      PrefetchAhead(g + i);
      PrefetchAhead(m + i);
      PrefetchAhead(v + i);
    }
    for (int64_t j = 0; j < kBlock; j += lanes) move(i + j);
  }
  if constexpr (kKind == StreamKind::kNonTemporal) hwy::FlushStream();
  return i;
}

void Stream(StreamKind kind, float* p, const float* g, float* m, float* v,
            int64_t count) {
  const bool aligned =
      ((reinterpret_cast<uintptr_t>(p) | reinterpret_cast<uintptr_t>(m) |
        reinterpret_cast<uintptr_t>(v)) %
       64) == 0;
  int64_t i = 0;
  if (kind == StreamKind::kNonTemporal && aligned) {
    i = StreamOf<StreamKind::kNonTemporal>(p, g, m, v, count);
  } else if (kind == StreamKind::kPrefetched) {
    i = StreamOf<StreamKind::kPrefetched>(p, g, m, v, count);
  } else {
    i = StreamOf<StreamKind::kPlain>(p, g, m, v, count);
  }
  ScalarKernels().stream_like_adam(kind, p + i, g + i, m + i, v + i, count - i);
}

template <bool kPrefetched>
int64_t ReadOf(const uint32_t* values, int64_t count, uint32_t& sum) {
  const U32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    if constexpr (kPrefetched) PrefetchAhead(values + i, kAheadBytesAlone);
    for (int64_t j = 0; j < kBlock; j += 2 * lanes) {
      even = hn::Xor(even, hn::LoadU(d, values + i + j));
      odd = hn::Xor(odd, hn::LoadU(d, values + i + j + lanes));
    }
  }
  HWY_ALIGN uint32_t left[hn::MaxLanes(d)];
  hn::Store(hn::Xor(even, odd), d, left);
  for (int64_t j = 0; j < lanes; ++j) sum ^= left[j];
  return i;
}

uint32_t Read(StreamKind kind, const uint32_t* values, int64_t count) {
  uint32_t sum = 0;
  const int64_t done = kind == StreamKind::kPrefetched
                           ? ReadOf<true>(values, count, sum)
                           : ReadOf<false>(values, count, sum);
  return sum ^ ScalarKernels().stream_read(kind, values + done, count - done);
}

void Triad(float* a, const float* b, const float* c, float scale,
           int64_t count) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const V factor = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::MulAdd(factor, hn::LoadU(d, c + i), hn::LoadU(d, b + i)), d,
               a + i);
  }
  ScalarKernels().triad(a + i, b + i, c + i, scale, count - i);
}

constexpr KernelTable Table(const char* name) {
  return {name, AdamAny, SumSquares, Narrow, Widen, Stream, Read, Triad};
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace::internal
HWY_AFTER_NAMESPACE();
#endif  // a vector target

#if HWY_ONCE
namespace terrace::internal {

std::vector<const KernelTable*> VectorKernels() {
  std::vector<const KernelTable*> tables;
  [[maybe_unused]] const int64_t supported = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_AVX3
  static constexpr KernelTable kAvx512 = N_AVX3::Table("AVX-512");
  if ((supported & HWY_AVX3) != 0) tables.push_back(&kAvx512);
#endif
#if HWY_TARGETS & HWY_AVX2
  static constexpr KernelTable kAvx2 = N_AVX2::Table("AVX2");
  if ((supported & HWY_AVX2) != 0) tables.push_back(&kAvx2);
#endif
#if HWY_TARGETS & HWY_NEON
  static constexpr KernelTable kNeon = N_NEON::Table("NEON");
  if ((supported & HWY_NEON) != 0) tables.push_back(&kNeon);
#endif
  return tables;
}

}  // namespace terrace::internal
#endif  // HWY_ONCE
