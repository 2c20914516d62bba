// All tensors of a runtime, by name and by id, and what must hold of each
// between two steps of the mover. Ids are never given twice; of a tensor that
// is gone nothing is left. Mover only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/tensor/tensor.h"
#include "terrace/tensor.h"

namespace terrace {

class TensorTable {
 public:
  // A tensor that Find does not know yet. AlreadyExists: the name.
  absl::StatusOr<Tensor*> Add(const TensorSpec& spec);
  // Its owner is told the id.
  void Admit(const Tensor& tensor);
  // Undoes an Add whose id was never told: the name is free again.
  void TakeBack(const Tensor& tensor);

  // Ends a tensor's life in three parts: it is not found any more; the name is
  // free again; it is gone.
  void Retire(const Tensor& tensor);
  void FreeName(const Tensor& tensor);
  void Erase(const Tensor& tensor);

  // Null: no such tensor, or not admitted, or retired. Pointers stay valid
  // until it is erased.
  Tensor* Find(TensorId id) const;
  bool IsAdmitted(const Tensor& tensor) const {
    return admitted_.contains(tensor.id.value);
  }
  // By id; those that are not admitted, or retired, too.
  const std::map<int64_t, std::unique_ptr<Tensor>>& all() const {
    return tensors_;
  }

  // The invariants of each; the message names the tensor.
  absl::Status CheckInvariants() const;

 private:
  std::map<int64_t, std::unique_ptr<Tensor>> tensors_;
  absl::flat_hash_map<absl::string_view, int64_t> names_;  // of the tensors'
  absl::flat_hash_map<int64_t, Tensor*> admitted_;  // until they are retired
  int64_t next_ = 0;                                // id
};

}  // namespace terrace
