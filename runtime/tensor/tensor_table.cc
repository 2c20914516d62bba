#include "runtime/tensor/tensor_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace terrace {

absl::StatusOr<Tensor*> TensorTable::Add(const TensorSpec& spec) {
  if (names_.contains(spec.name)) {
    return absl::AlreadyExistsError(
        absl::StrCat("a tensor named '", spec.name, "' is registered already"));
  }
  const int64_t id = next_++;
  auto made = std::make_unique<Tensor>(spec, TensorId{id});
  Tensor* const tensor = made.get();
  tensors_.emplace_hint(tensors_.end(), id, std::move(made));
  names_.emplace(tensor->spec.name, id);
  return tensor;
}

void TensorTable::Admit(const Tensor& tensor) {
  const int64_t id = tensor.id.value;
  admitted_.emplace(id, tensors_.at(id).get());
}

void TensorTable::TakeBack(const Tensor& tensor) {
  FreeName(tensor);
  const int64_t id = tensor.id.value;
  if (id == next_ - 1) --next_;
  tensors_.erase(id);
}

void TensorTable::Retire(const Tensor& tensor) {
  admitted_.erase(tensor.id.value);
}

void TensorTable::FreeName(const Tensor& tensor) {
  const auto found = names_.find(tensor.spec.name);
  TERRACE_CHECK(found != names_.end() && found->second == tensor.id.value);
  names_.erase(found);
}

void TensorTable::Erase(const Tensor& tensor) {
  TERRACE_CHECK(!IsAdmitted(tensor) && tensor.at(kDramTier) == nullptr &&
                tensor.at(kHbmTier) == nullptr);
  tensors_.erase(tensor.id.value);
}

Tensor* TensorTable::Find(TensorId id) const {
  const auto found = admitted_.find(id.value);
  return found == admitted_.end() ? nullptr : found->second;
}

absl::Status TensorTable::CheckInvariants() const {
  for (const auto& [id, tensor] : tensors_) {
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
