// All tensors of a runtime, by name and by id, and what must hold of each
// between two steps of the mover. Ids are never given twice; of a tensor that
// is gone nothing is left. Mover only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/tensor/id_map.h"
#include "runtime/tensor/image_keeper.h"
#include "runtime/tensor/tensor_life.h"
#include "runtime/tensor/tier_fills.h"
#include "terrace/tensor.h"

namespace terrace {

class TensorTable {
 public:
  // `keeper`: told of the tensors that are admitted; it outlives the table.
  explicit TensorTable(ImageKeeper* keeper = nullptr) : keeper_(keeper) {}

  // A tensor that Find does not know yet. AlreadyExists: the name.
  absl::StatusOr<Tensor*> Add(const TensorSpec& spec);
  // Its owner is told the id.
  void Admit(const Tensor& tensor);
  // Undoes an Add whose id was never told: the name is free again.
  void TakeBack(const Tensor& tensor);

  // As another runtime had it, admitted once Admit is called. Null: the id, or
  // the name, is another's.
  Tensor* Restore(TensorId id, const TensorSpec& spec);
  // No id below that one is given from here on.
  void SkipTo(int64_t next) { next_ = std::max(next_, next); }

  // Ends a tensor's life in three parts: it is not found any more; the name is
  // free again; it is gone.
  void Retire(const Tensor& tensor);
  void FreeName(const Tensor& tensor);
  void Erase(const Tensor& tensor);

  // Null: no such tensor, or not admitted, or retired. Pointers stay valid
  // until it is erased.
  Tensor* Find(TensorId id) const;
  bool IsAdmitted(const Tensor& tensor) const {
    return !outside_.contains(tensor.id.value);
  }
  // `visit(const Tensor&)` by id, of those that are not admitted, or retired,
  // too.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    tensors_.ForEach(
        [&](const std::unique_ptr<Tensor>& tensor) { visit(*tensor); });
  }

  // `visit(const Tensor&)` of those that Find knows with ids behind that one,
  // until it returns false.
  template <typename Visit>
  void ForEachAfter(TensorId id, const Visit& visit) const {
    if (id.value == INT64_MAX) return;
    tensors_.ForEachFrom(id.value + 1,
                         [&](const std::unique_ptr<Tensor>& tensor) {
                           return !IsAdmitted(*tensor) || visit(*tensor);
                         });
  }

  // What all that ForEach visits have of that tier.
  TierFill FillOf(TierId tier) const { return fills_.Of(tier); }

  // The invariants of each, whose message names the tensor; and that what is
  // counted is what they have.
  absl::Status CheckInvariants() const;

 private:
  absl::Status Check(const Tensor& tensor) const;
  Tensor& Put(TensorId id, const TensorSpec& spec);

  ImageKeeper* const keeper_;
  TierFills fills_;
  IdMap<std::unique_ptr<Tensor>> tensors_;
  absl::flat_hash_map<absl::string_view, int64_t> names_;  // of the tensors'
  absl::flat_hash_set<int64_t> outside_;  // not admitted yet, or retired
  int64_t next_ = 0;                      // id
};

}  // namespace terrace
