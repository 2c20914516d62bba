#include "runtime/residency/byte_pins.h"

#include <algorithm>
#include <utility>

#include "terrace/runtime.h"

namespace terrace {

void BytePins::Close(int64_t queue) {
  open_.erase(queue);
  for (const auto& [token, pin] : pins_) {
    if (pin.queue != queue || !pin.asked) continue;
    Pins& pins = tensors_.at(pin.tensor);
    if (pins.comes == pin.tier) EndComes(*pin.tensor, pins);
  }
}

void BytePins::OnGranted(uint64_t token, Tensor& tensor, TierId tier,
                         int64_t queue) {
  Pins& pins = tensors_[&tensor];
  // A new holder uses it.
  EndComes(tensor, pins);
  if (CountAt(pins, tier) == 0) ++sums_[tier].pinned;
  pins.tokens.push_back(token);
  pins_[token] = {&tensor, tier, queue};
  const auto of = open_.find(queue);
  if (of == open_.end()) return;
  of->second.Add(tensor);
  changed_.insert(queue);
}

void BytePins::RestoreAsked(uint64_t token, bool is_kept) {
  Pin& pin = pins_.at(token);
  const auto holds = open_.find(pin.queue);
  if (holds == open_.end()) return;
  pin.asked = true;
  pin.kept = is_kept;
  holds->second.Remove(*pin.tensor);
}

bool BytePins::OnEnded(uint64_t token) {
  const auto found = pins_.find(token);
  if (found == pins_.end()) return false;
  const Pin pin = found->second;
  pins_.erase(found);
  waiting_.erase(token);
  const auto holds = open_.find(pin.queue);
  if (!pin.asked && holds != open_.end()) holds->second.Remove(*pin.tensor);
  const auto of = tensors_.find(pin.tensor);
  Pins& pins = of->second;
  pins.tokens.erase(std::find(pins.tokens.begin(), pins.tokens.end(), token));
  const bool is_last = CountAt(pins, pin.tier) == 0;
  if (is_last) {
    --sums_[pin.tier].pinned;
    if (pins.comes == pin.tier) EndComes(*pin.tensor, pins);
  }
  const bool none_asked =
      std::none_of(pins.tokens.begin(), pins.tokens.end(),
                   [this](uint64_t each) { return pins_.at(each).asked; });
  if (pins.tokens.empty()) tensors_.erase(of);
  return is_last || none_asked;
}

const Tensor* BytePins::Keep(uint64_t token) {
  const auto found = pins_.find(token);
  if (found == pins_.end()) return nullptr;
  Pin& pin = found->second;
  if (!pin.asked || pin.kept) return nullptr;
  pin.kept = true;
  ++counts_.kept;
  Pins& pins = tensors_.at(pin.tensor);
  if (pins.comes == pin.tier) EndComes(*pin.tensor, pins);
  return pin.tensor;
}

void BytePins::SetWaiting(uint64_t token, bool waits) {
  if (!pins_.contains(token)) return;
  if (waits) {
    ++waiting_[token];
    return;
  }
  const auto found = waiting_.find(token);
  if (found == waiting_.end() || --found->second > 0) return;
  waiting_.erase(found);
  changed_.insert(pins_.at(token).queue);
}

bool BytePins::MayAsk(const Tensor& tensor, TierId tier, int32_t pins) const {
  const auto found = tensors_.find(&tensor);
  if (found == tensors_.end()) return false;
  int32_t may = 0;
  for (const uint64_t token : found->second.tokens) {
    const Pin& pin = pins_.at(token);
    if (pin.tier == tier && !pin.asked && open_.contains(pin.queue)) ++may;
  }
  return may == pins;
}

bool BytePins::HasWaiting(const Tensor& tensor) const {
  const auto found = tensors_.find(&tensor);
  if (found == tensors_.end()) return false;
  const auto& tokens = found->second.tokens;
  return std::any_of(tokens.begin(), tokens.end(), [this](uint64_t token) {
    return waiting_.contains(token);
  });
}

void BytePins::AskForRoom(const Tensor& tensor, TierId tier, uint64_t asker) {
  Pins& pins = tensors_.at(&tensor);
  for (const uint64_t token : pins.tokens) {
    if (pins_.at(token).tier == tier) Ask(token);
  }
  SetComes(tensor, pins, tier, asker);
}

void BytePins::AskForAccess(const Tensor& tensor) {
  const auto found = tensors_.find(&tensor);
  if (found == tensors_.end()) return;
  for (const uint64_t token : found->second.tokens) Ask(token);
}

void BytePins::Ask(uint64_t token) {
  Pin& pin = pins_.at(token);
  const auto holds = open_.find(pin.queue);
  if (pin.asked || holds == open_.end()) return;
  pin.asked = true;
  holds->second.Remove(*pin.tensor);
  ++counts_.asked;
  asked_.push_back({pin.queue, token});
}

void BytePins::HoldAtMost(int64_t queue, int64_t bytes) {
  const auto found = open_.find(queue);
  if (found == open_.end()) return;
  found->second.HoldAtMost(bytes);
  changed_.insert(queue);
}

void BytePins::OnUse(int64_t queue, Tensor& tensor) {
  const auto found = open_.find(queue);
  if (found != open_.end()) found->second.OnUse(tensor);
}

void BytePins::OnInUse(uint64_t token) {
  const auto found = pins_.find(token);
  if (found == pins_.end()) return;
  const auto holds = open_.find(found->second.queue);
  if (holds == open_.end()) return;
  holds->second.Spare(*found->second.tensor);
  changed_.insert(found->second.queue);
}

std::vector<RecalledPin> BytePins::AskBeyond() {
  std::vector<RecalledPin> others = TakeAsked();
  for (const int64_t queue : std::exchange(changed_, {})) {
    const auto found = open_.find(queue);
    if (found == open_.end()) continue;
    const auto may_end = [this](const Tensor& tensor) {
      return !HasWaiting(tensor);
    };
    for (const Tensor* const each : found->second.TakeBeyond(may_end)) {
      for (const uint64_t token : tensors_.at(each).tokens) {
        if (pins_.at(token).queue == queue) Ask(token);
      }
    }
  }
  others.swap(asked_);
  return others;
}

std::vector<RecalledPin> BytePins::TakeAsked() {
  return std::exchange(asked_, {});
}

const Tensor* BytePins::TensorOf(uint64_t token, TierId tier) const {
  const auto found = pins_.find(token);
  if (found == pins_.end() || found->second.tier != tier) return nullptr;
  return found->second.tensor;
}

bool BytePins::IsPinned(const Tensor& tensor, TierId tier) const {
  const auto found = tensors_.find(&tensor);
  return found != tensors_.end() && CountAt(found->second, tier) > 0;
}

void BytePins::SetComes(const Tensor& tensor, Pins& pins, TierId tier,
                        uint64_t asker) {
  EndComes(tensor, pins);
  pins.comes = tier;
  pins.asker = asker;
  const int64_t bytes = ResidentBytes(tensor.spec.size_bytes);
  sums_[tier].coming_bytes += bytes;
  coming_for_[asker] += bytes;
}

void BytePins::EndComes(const Tensor& tensor, Pins& pins) {
  if (pins.comes == kNoTier) return;
  const int64_t bytes = ResidentBytes(tensor.spec.size_bytes);
  sums_[pins.comes].coming_bytes -= bytes;
  pins.comes = kNoTier;
  const auto of = coming_for_.find(pins.asker);
  of->second -= bytes;
  if (of->second == 0) coming_for_.erase(of);
}

int64_t BytePins::coming_bytes_for(uint64_t asker) const {
  const auto found = coming_for_.find(asker);
  return found == coming_for_.end() ? 0 : found->second;
}

bool BytePins::ComesFor(const Tensor& tensor, TierId tier,
                        uint64_t asker) const {
  const auto found = tensors_.find(&tensor);
  return found != tensors_.end() && found->second.comes == tier &&
         found->second.asker == asker;
}

const BytePins::Sums& BytePins::At(TierId tier) const {
  static constexpr Sums kNone;
  const auto found = sums_.find(tier);
  return found == sums_.end() ? kNone : found->second;
}

bool BytePins::AllPinned(TierId tier,
                         absl::FunctionRef<bool(const Tensor&)> is) const {
  for (const auto& [tensor, pins] : tensors_) {
    if (CountAt(pins, tier) > 0 && !is(*tensor)) return false;
  }
  return true;
}

int BytePins::CountAt(const Pins& pins, TierId tier) const {
  return static_cast<int>(std::count_if(
      pins.tokens.begin(), pins.tokens.end(),
      [&](uint64_t token) { return pins_.at(token).tier == tier; }));
}

}  // namespace terrace
