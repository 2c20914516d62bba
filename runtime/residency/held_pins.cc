#include "runtime/residency/held_pins.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "terrace/runtime.h"

namespace terrace {

void HeldPins::Add(Tensor& tensor) {
  order_.OnUse(tensor);
  if (++pins_[&tensor] > 1) return;
  held_bytes_ += ResidentBytes(tensor.spec.size_bytes);
  spared_.push_back(&tensor);
}

void HeldPins::Remove(const Tensor& tensor) {
  const auto found = pins_.find(&tensor);
  if (--found->second > 0) return;
  pins_.erase(found);
  order_.Forget(tensor);
  std::erase(spared_, &tensor);
  held_bytes_ -= ResidentBytes(tensor.spec.size_bytes);
}

void HeldPins::OnUse(Tensor& tensor) {
  if (pins_.contains(&tensor)) order_.OnUse(tensor);
}

void HeldPins::Spare(Tensor& tensor) {
  if (pins_.contains(&tensor)) spared_.push_back(&tensor);
}

std::vector<Tensor*> HeldPins::TakeBeyond(
    absl::FunctionRef<bool(const Tensor&)> may_end) {
  const std::vector<Tensor*> spared = std::exchange(spared_, {});
  int64_t beyond = held_bytes_ - most_bytes_;
  if (beyond <= 0) return {};
  absl::flat_hash_set<const Tensor*> is_spared(spared.begin(), spared.end());
  std::vector<Tensor*> taken = order_.First(beyond, [&](const Tensor& tensor) {
    return !is_spared.contains(&tensor) && may_end(tensor);
  });
  for (const Tensor* const each : taken) {
    beyond -= ResidentBytes(each->spec.size_bytes);
  }
  for (Tensor* const each : spared) {
    if (beyond <= 0) break;
    if (is_spared.erase(each) == 0 || !may_end(*each)) continue;
    taken.push_back(each);
    beyond -= ResidentBytes(each->spec.size_bytes);
  }
  return taken;
}

}  // namespace terrace
