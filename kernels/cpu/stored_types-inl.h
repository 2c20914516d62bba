// How fp32, bf16 and fp16 are loaded into vectors of fp32 and stored from them,
// and how a loop over such streams asks for memory ahead: the part that all
// vector kernels share. Compiled once for each instruction set, as part of
// vector_kernels.cc.
#if defined(TERRACE_KERNELS_CPU_STORED_TYPES_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_STORED_TYPES_INL_H_
#undef TERRACE_KERNELS_CPU_STORED_TYPES_INL_H_
#else
#define TERRACE_KERNELS_CPU_STORED_TYPES_INL_H_
#endif

#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/float16.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace terrace::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;
using F16 = hn::Rebind<hwy::float16_t, F32>;
using Words = hn::Repartition<uint16_t, F32>;  // twice as many lanes
using V = hn::Vec<F32>;
struct Two {  // vectors of consecutive elements
  V first, second;
};

// Elements between two rounds of prefetches: one line of a 16-bit stream, two
// of an fp32 one, each asked for once whatever the width of a vector is.
constexpr int64_t kBlock = 32;

// Elements whose masters are compared with their parameter together, in a loop
// that has all registers to itself and finds them in the cache for the update:
// fewer than are asked for ahead.
constexpr int64_t kGroup = 256;

// How far ahead the lines of a stream are asked for: a time that has to be
// longer than memory takes to answer. All streams of an update are asked for
// the same number of elements ahead: at 50 GB/s 290 ns; half of it loses a
// tenth of the bf16 update's speed with AVX-512 and a sixth with AVX2, and more
// where memory is slower to answer. A stream alone is read in less time.
constexpr int64_t kAheadElements = 512;
constexpr int64_t kAheadBytesAlone = 4096;

// Asks for the lines of the block that is so many bytes later. The address is
// an integer, for it may lie beyond the array.
template <typename T>
HWY_INLINE void PrefetchAhead(const T* at,
                              int64_t bytes = kAheadElements * sizeof(T)) {
  constexpr uintptr_t kLineBytes = 64;
  const uintptr_t from =
      reinterpret_cast<uintptr_t>(at) + static_cast<uintptr_t>(bytes);
  for (uintptr_t i = 0; i < kBlock * sizeof(T); i += kLineBytes) {
    hwy::Prefetch(reinterpret_cast<const char*>(from + i));
  }
}

// Reordered so that InterleaveLower takes the first half of them, as they were,
// and InterleaveUpper the second.
template <typename D>
HWY_INLINE hn::Vec<D> ForInterleaving(D words, hn::Vec<D> values) {
  const hn::Repartition<uint64_t, D> d;
  if constexpr (hn::MaxLanes(d) == 2) {
    return values;
  } else {
    HWY_ALIGN static constexpr int64_t kOf4[] = {0, 2, 1, 3};
    HWY_ALIGN static constexpr int64_t kOf8[] = {0, 4, 1, 5, 2, 6, 3, 7};
    const auto order =
        hn::SetTableIndices(d, hn::MaxLanes(d) == 4 ? kOf4 : kOf8);
    return hn::BitCast(words,
                       hn::TableLookupLanes(hn::BitCast(d, values), order));
  }
}

// How a type is stored. Store also returns a value that is finite if what it
// stored is. LoadTwo and StoreTwo are of two vectors, in fewer operations where
// there are any. Of 16-bit types, Master is MasterReference of a master and
// what is stored (of a NaN any NaN), and MayBeWritten is false only where that
// is the master itself for each of kGroup elements.
struct Float32 {
  using Stored = float;
  static float Widen(float value) { return value; }
  static HWY_INLINE V Load(const float* at) { return hn::LoadU(F32(), at); }
  static HWY_INLINE V Store(V value, float* at) {
    hn::StoreU(value, F32(), at);
    return value;
  }
  static HWY_INLINE Two LoadTwo(const float* at) {
    return {Load(at), Load(at + hn::Lanes(F32()))};
  }
  static HWY_INLINE Two StoreTwo(const Two& values, float* at) {
    return {Store(values.first, at),
            Store(values.second, at + hn::Lanes(F32()))};
  }
};

struct BFloat16 {
  using Stored = uint16_t;
  static float Widen(uint16_t bits) { return WidenBFloat16(bits); }
  static HWY_INLINE V Load(const uint16_t* at) {
    return hn::BitCast(
        F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), at))));
  }
  static HWY_INLINE V Store(V value, uint16_t* at) {
    const V stored = Narrowed(value);
    const auto upper = hn::ShiftRight<16>(hn::BitCast(U32(), stored));
    hn::StoreU(hn::TruncateTo(U16(), upper), U16(), at);
    return stored;
  }
  static HWY_INLINE Two LoadTwo(const uint16_t* at) {
    const Words words;
    const auto bits = ForInterleaving(words, hn::LoadU(words, at));
    const auto zero = hn::Zero(words);
    return {hn::BitCast(F32(), hn::InterleaveLower(words, zero, bits)),
            hn::BitCast(F32(), hn::InterleaveUpper(words, zero, bits))};
  }
  static HWY_INLINE Two StoreTwo(const Two& values, uint16_t* at) {
    const Words words;
    const Two stored = {Narrowed(values.first), Narrowed(values.second)};
    hn::StoreU(hn::ConcatOdd(words, hn::BitCast(words, stored.second),
                             hn::BitCast(words, stored.first)),
               words, at);
    return stored;
  }
  static HWY_INLINE V Master(V master, const uint16_t* at) {
    const U32 d;
    const V stored = Load(at);
    const auto differing = hn::And(
        hn::Xor(Rounded(master), hn::BitCast(d, stored)), hn::Set(d, ~0xFFFFu));
    const auto same = hn::RebindMask(F32(), hn::Eq(differing, hn::Zero(d)));
    // A NaN may seem to round to a number.
    return hn::IfThenElse(hn::AndNot(hn::IsNaN(master), same), master, stored);
  }
  // As integers, what rounds to a value lies less than half of its last place
  // from it, but for ties, which count as written here; so does what is not
  // finite, for a NaN may lie there too.
  static HWY_NOINLINE bool MayBeWritten(const float* master,
                                        const uint16_t* at) {
    const U32 d;
    const Words words;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    const auto half = hn::Set(words, 0x7FFF);  // less than
    const V zero = hn::Zero(F32());
    V nan_if_bad_lower = zero, nan_if_bad_upper = zero;
    auto most = hn::Zero(d);
    const auto compare = [&](hn::Vec<Words> stored_and_half, int64_t i,
                             V& nan_if_bad) HWY_ATTR {
      const V value = hn::LoadU(F32(), master + i);
      nan_if_bad = hn::MulAdd(value, zero, nan_if_bad);
      most = hn::Max(most, hn::Sub(hn::BitCast(d, stored_and_half),
                                   hn::BitCast(d, value)));
    };
    for (int64_t i = 0; i < kGroup; i += 2 * lanes) {
      const auto stored = ForInterleaving(words, hn::LoadU(words, at + i));
      compare(hn::InterleaveLower(words, half, stored), i, nan_if_bad_lower);
      compare(hn::InterleaveUpper(words, half, stored), i + lanes,
              nan_if_bad_upper);
    }
    const auto within = hn::Min(most, hn::Set(d, 2 * 0x7FFF));
    return !hn::AllTrue(d, hn::Eq(within, most)) ||
           !hn::AllTrue(
               F32(),
               hn::Eq(hn::Add(nan_if_bad_lower, nan_if_bad_upper), zero));
  }

 private:
  // In the upper halves.
  static HWY_INLINE V Narrowed(V value) {
    const V quiet_nan = hn::BitCast(F32(), hn::Set(U32(), 0x7FC00000));
    return hn::IfThenElse(hn::IsNaN(value), quiet_nan,
                          hn::BitCast(F32(), Rounded(value)));
  }
  // In the upper halves. Less than half of the last place is added, one more if
  // that place is odd, so that a tie goes to the even one. Not of a NaN. Shifts
  // are few: they share the division's port.
  static HWY_INLINE hn::Vec<U32> Rounded(V value) {
    const U32 d;
    const auto bits = hn::BitCast(d, value);
    const auto minus_one_if_odd =
        hn::VecFromMask(d, hn::TestBit(bits, hn::Set(d, 0x10000)));
    return hn::Sub(hn::Add(bits, hn::Set(d, 0x7FFF)), minus_one_if_odd);
  }
};

struct Float16 {
  using Stored = uint16_t;
  static float Widen(uint16_t bits) { return WidenFloat16(bits); }
  static HWY_INLINE V Load(const uint16_t* at) {
    const auto bits = hn::LoadU(U16(), at);
    return hn::PromoteTo(F32(), hn::BitCast(F16(), bits));
  }
  static HWY_INLINE V Store(V value, uint16_t* at) {
    const auto narrow = hn::DemoteTo(F16(), value);
    hn::StoreU(hn::BitCast(U16(), narrow), U16(), at);
    return hn::PromoteTo(F32(), narrow);
  }
  static HWY_INLINE Two LoadTwo(const uint16_t* at) {
    return {Load(at), Load(at + hn::Lanes(F32()))};
  }
  static HWY_INLINE Two StoreTwo(const Two& values, uint16_t* at) {
    return {Store(values.first, at),
            Store(values.second, at + hn::Lanes(F32()))};
  }
  static HWY_INLINE V Master(V master, const uint16_t* at) {
    const U32 d;
    const auto differing = hn::PromoteTo(d, Differing(master, at));
    const auto same = hn::RebindMask(F32(), hn::Eq(differing, hn::Zero(d)));
    return hn::IfThenElse(same, master, Load(at));
  }
  static HWY_NOINLINE bool MayBeWritten(const float* master,
                                        const uint16_t* at) {
    const auto lanes = static_cast<int64_t>(hn::Lanes(F32()));
    auto any = hn::Zero(U16());
    for (int64_t i = 0; i < kGroup; i += lanes) {
      any = hn::Or(any, Differing(hn::LoadU(F32(), master + i), at + i));
    }
    return !hn::AllTrue(U16(), hn::Eq(any, hn::Zero(U16())));
  }

 private:
  // Bits by which a master's rounding is another value than what is stored.
  static HWY_INLINE hn::Vec<U16> Differing(V master, const uint16_t* at) {
    const auto rounded = hn::BitCast(U16(), hn::DemoteTo(F16(), master));
    return hn::Xor(rounded, hn::LoadU(U16(), at));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace terrace::internal
HWY_AFTER_NAMESPACE();
#endif  // a vector target
#endif  // once for each instruction set
