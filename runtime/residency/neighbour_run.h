// NeighbourRun finds room in one part: a run of neighbours in a tier's memory,
// each of which is free, or leaves already, or may leave. Tensors that may
// leave are shown to it one after the other, the one that is used last first.
// As soon as one of them completes a run of the wanted size, no other run of
// that size has its earliest use later. Those of the run leave, and no others:
// what was shown and lies elsewhere would give room that no tensor fits in.
//
// A tensor costs O(log n) of those that were shown. Mover only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "runtime/tensor/tensor_life.h"
#include "tiers/byte_tier.h"
#include "tiers/extent.h"

namespace terrace {

class NeighbourRun {
 public:
  // `tier` outlives it.
  NeighbourRun(const Tier& tier, int64_t bytes) : tier_(tier), bytes_(bytes) {}

  // That range becomes free without anybody's doing.
  void AddComing(const Extent& room) { Join(room); }
  // The tensor in that range may leave. Nothing, once the run is complete.
  void Add(Tensor& tensor, const Extent& room);

  bool complete() const { return complete_; }
  // The tensors of the run, once it is complete: none that it does not need.
  const std::vector<Tensor*>& tensors() const { return tensors_; }

 private:
  struct Neighbour {
    Tensor* tensor = nullptr;
    Extent room;
    size_t shown = 0;  // before it
  };

  void Join(const Extent& room);
  // Those between two offsets, but for what the run does without at its ends:
  // first what is used earlier.
  std::vector<Tensor*> Needed(int64_t begin, int64_t end) const;

  const Tier& tier_;
  const int64_t bytes_;
  absl::btree_map<int64_t, Neighbour> neighbours_;  // by offset
  absl::btree_map<int64_t, int64_t> runs_;  // that do not touch: offset, end
  bool complete_ = false;
  std::vector<Tensor*> tensors_;
};

}  // namespace terrace
