// What customers used in one step, in order.
//
// A tensor stands there by its key: its id, or, where tensors are made anew in
// each step, a number below zero that it has in every step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "terrace/tensor.h"

namespace terrace {

struct RecordedStep {
  // Ascending; few tensors are asked for more often in a step.
  using Positions = absl::InlinedVector<int64_t, 2>;

  std::vector<TensorId> accesses;
  // Where in those each tensor stands: noted while the step is recorded, so
  // that a step begins as soon with many tensors as with few.
  absl::flat_hash_map<int64_t, Positions> positions;
  std::vector<int64_t> bytes;  // of the accesses up to each, it included

  int64_t size() const { return static_cast<int64_t>(accesses.size()); }
  bool empty() const { return accesses.empty(); }

  void Add(TensorId tensor, int64_t size_bytes) {
    positions[tensor.value].push_back(size());
    bytes.push_back(BytesBefore(size()) + size_bytes);
    accesses.push_back(tensor);
  }
  // Null: the step does not have it.
  const Positions* Find(TensorId tensor) const {
    const auto found = positions.find(tensor.value);
    return found == positions.end() ? nullptr : &found->second;
  }
  int64_t BytesBefore(int64_t position) const {
    return position == 0 ? 0 : bytes[static_cast<size_t>(position - 1)];
  }
  // For about as many accesses as that step has.
  void ReserveAs(const RecordedStep& step) {
    accesses.reserve(step.accesses.size());
    positions.reserve(step.positions.size());
    bytes.reserve(step.bytes.size());
  }
};

}  // namespace terrace
