// Tells its storages from others, and does not keep their bytes.
//
// One thread fills the set; then any thread may ask it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"

namespace terrace {

class StorageSet {
 public:
  // Adds the storages of those tensors that have one.
  void Add(absl::Span<const at::Tensor> tensors);
  bool Has(const at::Tensor& tensor) const;

 private:
  absl::flat_hash_set<const c10::StorageImpl*> addresses_;
  // No other storage has such an address while these references live.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

}  // namespace terrace
