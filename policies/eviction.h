// Which tensors leave the resident set. Policies know ids and times only; they
// run inside the mover, live, and alone in tests. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "terrace/options.h"
#include "terrace/tensor.h"

namespace terrace {

// Time of a next use, in touches from now on; kUnknownUse when there is no
// trace to know it from.
inline constexpr int64_t kUnknownUse = INT64_MAX;

struct EvictionCandidate {
  TensorId tensor;
  int64_t size_bytes = 0;
  int64_t next_use = kUnknownUse;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // Where its order is by next use first, then by recency; else by recency
  // alone. Whoever keeps that order needs no candidates.
  virtual bool ranks_by_next_use() const = 0;
  virtual void OnResident(TensorId tensor) = 0;
  virtual void OnTouch(TensorId tensor) = 0;
  virtual void OnGone(TensorId tensor) = 0;

  // Appends victims, best first, whose sizes add up to at least `bytes`, or
  // fewer when the policy would rather keep the rest: none, unless `must`, as
  // too little room is of no use. `newcomer_use` is the next use of what the
  // room is for (do no harm: next-use never displaces what is needed sooner,
  // nor on unknown futures: a newcomer of unknown use displaces nothing);
  // `must` asks for room at any price (a window that opens).
  virtual void PickVictims(int64_t bytes, int64_t newcomer_use, bool must,
                           absl::Span<const EvictionCandidate> evictable,
                           std::vector<TensorId>* victims) = 0;
};

std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(EvictionKind kind);

// Least recently touched first.
std::unique_ptr<EvictionPolicy> MakeLruPolicy();
// Furthest next use first (Belady 1966, "A study of replacement algorithms
// for a virtual-storage computer"); ties leave by recency.
std::unique_ptr<EvictionPolicy> MakeNextUsePolicy();

}  // namespace terrace
