// Tensors in the order in which they were added, and their bytes together. A
// tensor that is added once more goes to the end. One thread at a time uses it.
#pragma once

#include <cstdint>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "terrace/tensor.h"

namespace terrace {

class TensorLine {
 public:
  void Add(TensorId tensor, int64_t size_bytes);
  // Nothing, where it is not in the line.
  void Erase(TensorId tensor);
  void Clear() { *this = TensorLine(); }

  bool empty() const { return order_.empty(); }
  bool contains(TensorId tensor) const {
    return places_.contains(tensor.value);
  }
  // The line is not empty.
  TensorId first() const { return order_.begin()->second.tensor; }
  TensorId last() const { return order_.rbegin()->second.tensor; }
  int64_t first_bytes() const { return order_.begin()->second.size_bytes; }
  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    TensorId tensor;
    int64_t size_bytes = 0;
  };
  absl::flat_hash_map<int64_t, uint64_t> places_;  // by tensor
  absl::btree_map<uint64_t, Entry> order_;         // by place
  int64_t bytes_ = 0;
};

}  // namespace terrace
