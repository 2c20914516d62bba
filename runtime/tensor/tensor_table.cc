#include "runtime/tensor/tensor_table.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace terrace {

absl::StatusOr<Tensor*> TensorTable::Add(const TensorSpec& spec) {
  if (names_.contains(spec.name)) {
    return absl::AlreadyExistsError(
        absl::StrCat("a tensor named '", spec.name, "' is registered already"));
  }
  const auto id = static_cast<int64_t>(tensors_.size());
  tensors_.push_back(std::make_unique<Tensor>(spec, TensorId{id}));
  Tensor* const tensor = tensors_.back().get();
  names_.emplace(tensor->spec.name, id);
  outside_.insert(id);
  return tensor;
}

void TensorTable::Admit(const Tensor& tensor) {
  outside_.erase(tensor.id.value);
}

void TensorTable::TakeBack(const Tensor& tensor) {
  FreeName(tensor);
  outside_.erase(tensor.id.value);
  if (&tensor == tensors_.back().get()) {
    tensors_.pop_back();
  } else {
    tensors_[static_cast<size_t>(tensor.id.value)].reset();
  }
}

void TensorTable::Retire(const Tensor& tensor) {
  outside_.insert(tensor.id.value);
}

void TensorTable::FreeName(const Tensor& tensor) {
  const auto found = names_.find(tensor.spec.name);
  TERRACE_CHECK(found != names_.end() && found->second == tensor.id.value);
  names_.erase(found);
}

void TensorTable::Erase(const Tensor& tensor) {
  TERRACE_CHECK(!IsAdmitted(tensor) && tensor.at(kDramTier) == nullptr &&
                tensor.at(kHbmTier) == nullptr);
  outside_.erase(tensor.id.value);
  tensors_[static_cast<size_t>(tensor.id.value)].reset();
}

Tensor* TensorTable::Find(TensorId id) const {
  if (id.value < 0 || id.value >= static_cast<int64_t>(tensors_.size())) {
    return nullptr;
  }
  return outside_.contains(id.value)
             ? nullptr
             : tensors_[static_cast<size_t>(id.value)].get();
}

absl::Status TensorTable::CheckInvariants() const {
  for (const auto& tensor : tensors_) {
    if (tensor == nullptr) continue;
    absl::Status status = terrace::CheckInvariants(*tensor);
    if (!status.ok()) return status;
    const bool admitted = IsAdmitted(*tensor);
    const char* broken = nullptr;
    if (admitted && tensor->generation() > 0 && tensor->loss().ok() &&
        !tensor->delivered() && !tensor->Fetchable()) {
      broken = "written once, has no whole copy and no DataLoss";
    }
    if (!admitted && tensor->pins() > 0) broken = "pinned after its end";
    if (broken != nullptr) {
      return absl::InternalError(
          absl::StrCat("tensor '", tensor->spec.name, "': ", broken));
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace
