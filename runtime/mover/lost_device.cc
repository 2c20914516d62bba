#include "runtime/mover/lost_device.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace terrace {

void LostDevice::Serve(std::vector<Arrival>* arrivals) {
  for (const TierResidency* const each : working_.devices()) {
    const bool is_lost =
        std::find(lost_.begin(), lost_.end(), each->id()) != lost_.end();
    if (!is_lost && !each->tier().Health().ok()) Begin(each->id());
  }
  std::erase_if(left_, [&](const auto& left) {
    return End(left.first, left.second, arrivals);
  });
}

// Nothing comes there any more.
void LostDevice::Begin(TierId tier) {
  lost_.push_back(tier);
  table_.ForEach([&](const Tensor& tensor) {
    if (tensor.at(tier) != nullptr) left_.emplace_back(tier, tensor.id);
  });
}

bool LostDevice::End(TierId tier, TensorId id,
                     std::vector<Arrival>* arrivals) const {
  Tensor* const tensor = table_.Find(id);
  // What is unregistered goes by itself.
  if (tensor == nullptr || tensor->at(tier) == nullptr) return true;
  // Its last transfer may save it; a writer elsewhere may make it anew.
  if (!tensor->Idle(tier) || tensor->write_pinned()) return false;
  TierResidency& device = working_.at(tier);
  if (IsCurrentBeside(*tensor, tier)) {
    device.Drop(*tensor);
    return true;
  }
  arrivals->push_back(
      {.kind = Arrival::Kind::kLost,
       .tensor = tensor,
       .edge = {tier, tier},
       .status = absl::DataLossError(absl::StrCat(
           "tensor '", tensor->spec.name, "': its newest ",
           tensor->spec.size_bytes, " bytes were on ", device.tier().name(),
           " alone: ", device.tier().Health().message())),
       .source_is_gone = true});
  return true;
}

}  // namespace terrace
