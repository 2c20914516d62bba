#include "runtime/tensor/tensor_line.h"

namespace terrace {

void TensorLine::Add(TensorId tensor, int64_t size_bytes) {
  Erase(tensor);
  const uint64_t place = order_.empty() ? 0 : order_.rbegin()->first + 1;
  places_[tensor.value] = place;
  order_[place] = {tensor, size_bytes};
  bytes_ += size_bytes;
}

void TensorLine::Erase(TensorId tensor) {
  const auto found = places_.find(tensor.value);
  if (found == places_.end()) return;
  const auto entry = order_.find(found->second);
  bytes_ -= entry->second.size_bytes;
  order_.erase(entry);
  places_.erase(found);
}

}  // namespace terrace
