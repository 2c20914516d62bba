#include "runtime/mover/lost_device.h"

#include "absl/strings/str_cat.h"

namespace terrace {

void LostDevice::Serve(std::vector<Arrival>* arrivals) {
  if (!working_.Has(kHbmTier)) return;
  if (!is_lost_) {
    if (working_.at(kHbmTier).tier().Health().ok()) return;
    Begin();
  }
  std::erase_if(left_, [&](TensorId id) { return End(id, arrivals); });
}

// Nothing comes there any more.
void LostDevice::Begin() {
  is_lost_ = true;
  table_.ForEach([&](const Tensor& tensor) {
    if (tensor.at(kHbmTier) != nullptr) left_.push_back(tensor.id);
  });
}

bool LostDevice::End(TensorId id, std::vector<Arrival>* arrivals) const {
  Tensor* const tensor = table_.Find(id);
  // What is unregistered goes by itself.
  if (tensor == nullptr || tensor->at(kHbmTier) == nullptr) return true;
  // Its last transfer may save it; a writer elsewhere may make it anew.
  if (!tensor->Idle(kHbmTier) || tensor->write_pinned()) return false;
  TierResidency& device = working_.at(kHbmTier);
  if (IsCurrentBeside(*tensor, kHbmTier)) {
    device.Drop(*tensor);
    return true;
  }
  arrivals->push_back(
      {.kind = Arrival::Kind::kLost,
       .tensor = tensor,
       .edge = {kHbmTier, kHbmTier},
       .status = absl::DataLossError(absl::StrCat(
           "tensor '", tensor->spec.name, "': its newest ",
           tensor->spec.size_bytes, " bytes were on ", device.tier().name(),
           " alone: ", device.tier().Health().message())),
       .source_is_gone = true});
  return true;
}

}  // namespace terrace
