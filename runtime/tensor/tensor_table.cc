#include "runtime/tensor/tensor_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace terrace {

absl::StatusOr<Tensor*> TensorTable::Add(const TensorSpec& spec) {
  if (names_.contains(spec.name)) {
    return absl::AlreadyExistsError(
        absl::StrCat("a tensor named '", spec.name, "' is registered already"));
  }
  return &Put({next_++}, spec);
}

Tensor& TensorTable::Put(TensorId id, const TensorSpec& spec) {
  auto made = std::make_unique<Tensor>(spec, id, &fills_, keeper_);
  Tensor& tensor = *made;
  tensors_.Put(id.value, std::move(made));
  names_.emplace(tensor.spec.name, id.value);
  outside_.insert(id.value);
  return tensor;
}

Tensor* TensorTable::Restore(TensorId id, const TensorSpec& spec) {
  if (id.value < 0 || tensors_.Find(id.value) != nullptr) return nullptr;
  if (names_.contains(spec.name)) return nullptr;
  SkipTo(id.value + 1);
  return &Put(id, spec);
}

void TensorTable::Admit(const Tensor& tensor) {
  outside_.erase(tensor.id.value);
  if (keeper_ != nullptr) keeper_->OnTensor(tensor);
}

void TensorTable::TakeBack(const Tensor& tensor) {
  FreeName(tensor);
  const int64_t id = tensor.id.value;
  if (id == next_ - 1) --next_;
  outside_.erase(id);
  CountFills(tensor, -1, &fills_);
  tensors_.Erase(id);
}

void TensorTable::Retire(const Tensor& tensor) {
  outside_.insert(tensor.id.value);
}

void TensorTable::FreeName(const Tensor& tensor) {
  if (keeper_ != nullptr) keeper_->OnTensorEnd(tensor.id);
  const auto found = names_.find(tensor.spec.name);
  TERRACE_CHECK(found != names_.end() && found->second == tensor.id.value);
  names_.erase(found);
}

void TensorTable::Erase(const Tensor& tensor) {
  TERRACE_CHECK(!IsAdmitted(tensor) && !tensor.IsAtWork());
  const int64_t id = tensor.id.value;
  outside_.erase(id);
  CountFills(tensor, -1, &fills_);
  tensors_.Erase(id);
}

Tensor* TensorTable::Find(TensorId id) const {
  const std::unique_ptr<Tensor>* const found = tensors_.Find(id.value);
  return found == nullptr || outside_.contains(id.value) ? nullptr
                                                         : found->get();
}

absl::Status TensorTable::CheckInvariants() const {
  absl::Status status;
  TierFills fills;
  ForEach([&](const Tensor& tensor) {
    status.Update(Check(tensor));
    CountFills(tensor, 1, &fills);
  });
  if (fills == fills_) return status;
  status.Update(absl::InternalError(
      "tensors have other bytes of a tier than were counted"));
  return status;
}

absl::Status TensorTable::Check(const Tensor& tensor) const {
  absl::Status status = terrace::CheckInvariants(tensor);
  if (!status.ok()) return status;
  const bool admitted = IsAdmitted(tensor);
  const char* broken = nullptr;
  if (admitted && tensor.generation() > 0 && tensor.loss().ok() &&
      !tensor.delivered() && !tensor.Fetchable()) {
    broken = "written once, has no whole copy and no DataLoss";
  }
  if (!admitted && tensor.pins() > 0) broken = "pinned after its end";
  if (broken == nullptr) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("tensor '", tensor.spec.name, "': ", broken));
}

}  // namespace terrace
