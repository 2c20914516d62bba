#include "runtime/tensor/pin_book.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace terrace {

uint64_t PinBook::Grant(Tensor& tensor, TierId tier, int64_t queue,
                        Access access, uint64_t owner) {
  TERRACE_CHECK(tensor.Delivered(tier) && tensor.Pinned(tier));
  const uint64_t token = owner | next_token_++;
  Put(token, tensor, tier, queue, access);
  if (keeper_ != nullptr) {
    keeper_->OnPin({.token = token,
                    .tensor = tensor.id,
                    .queue = queue,
                    .access = access});
  }
  return token;
}

void PinBook::Put(uint64_t token, Tensor& tensor, TierId tier, int64_t queue,
                  Access access) {
  const bool was_dirty =
      tensor.generation() != 0 && IsNewerThanBelow(tensor, tier);
  pins_[token] = {&tensor, tier, queue, access, was_dirty};
  holders_[tensor.id.value].emplace_back(queue, tier);
}

bool PinBook::Restore(Tensor& tensor, TierId tier, const PinImage& pin) {
  if (pins_.contains(pin.token)) return false;
  Put(pin.token, tensor, tier, pin.queue, pin.access);
  return true;
}

absl::StatusOr<EndedPin> PinBook::End(uint64_t token, PinEnd end) {
  const auto found = pins_.find(token);
  if (found == pins_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("no pin ", token));
  }
  const Record pin = found->second;
  pins_.erase(found);
  Tensor& tensor = *pin.tensor;
  const auto held = holders_.find(tensor.id.value);
  auto& holders = held->second;
  holders.erase(std::find(holders.begin(), holders.end(),
                          std::make_pair(pin.queue, pin.tier)));
  if (holders.empty()) holders_.erase(held);
  const bool published = pin.access != Access::kRead && end == PinEnd::kPublish;
  if (published) tensor.Publish(pin.tier);
  tensor.Unhold(pin.tier, pin.access);

  EndedPin ended{.tensor = &tensor, .queue = pin.queue, .tier = pin.tier};
  if (pin.access == Access::kRead) {
    if (tensor.Pinned(pin.tier)) return ended;
    // A reader may have come before the write-back of what it read.
    ended.dirty = tensor.Dirty(pin.tier);
    // A reader's promise that it needs no copy any more.
    ended.drop = end == PinEnd::kDiscard && !ended.dirty;
    return ended;
  }
  if (published) {
    ended.published = true;
    ended.dirty = true;
    return ended;
  }
  // Also: never written.
  const bool other_is_current = IsCurrentBeside(tensor, pin.tier);
  const bool overwritten = pin.access == Access::kOverwrite;
  if (end == PinEnd::kUnchanged && !(overwritten && other_is_current)) {
    ended.dirty = pin.was_dirty;  // the copy is as it was
    return ended;
  }
  ended.drop = true;
  ended.lost = !other_is_current;
  return ended;
}

PinnedBy PinBook::WhoPins(const Tensor& tensor, TierId tier,
                          int64_t queue) const {
  PinnedBy by;
  int32_t pins = 0;
  const auto held = holders_.find(tensor.id.value);
  if (held != holders_.end()) {
    for (const auto& [holder, at] : held->second) {
      if (at != tier) continue;
      (holder == queue ? by.own : by.others) = true;
      ++pins;
    }
  }
  const Copy* const copy = tensor.at(tier);
  if (copy != nullptr && copy->pins > pins) by.others = true;
  return by;
}

PinnedBy PinBook::WhoPins(const Tensor& tensor, int64_t queue) const {
  PinnedBy by;
  int32_t pins = 0;
  const auto held = holders_.find(tensor.id.value);
  if (held != holders_.end()) {
    for (const auto& [holder, at] : held->second) {
      (holder == queue ? by.own : by.others) = true;
      ++pins;
    }
  }
  if (tensor.pins() > pins) by.others = true;
  return by;
}

std::vector<std::string> PinBook::Names(size_t most) const {
  std::vector<std::string> names;
  for (const auto& [token, pin] : pins_) {
    if (names.size() == most) break;
    names.push_back(pin.tensor->spec.name);
  }
  return names;
}

}  // namespace terrace
