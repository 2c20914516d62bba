#include "optimizer/step/gradient_supply.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace terrace {

void GradientSupply::Begin(absl::Span<const ParameterSpec> specs,
                           absl::Span<const ParameterData> expected) {
  TERRACE_CHECK(held_.empty());
  Clear();
  gradual_ = true;
  states_.assign(static_cast<size_t>(chunks_.size()), ChunkState());
  stepped_.Begin(specs.size());
  for (int chunk = 0; chunk < chunks_.size(); ++chunk) {
    for (const Segment& segment : chunks_.chunk(chunk).segments) {
      const auto parameter = static_cast<size_t>(segment.parameter);
      if (expected[parameter].gradient != nullptr) ++state(chunk).to_come;
    }
  }
}

void GradientSupply::Clear() {
  gradual_ = ended_ = false;
  states_.clear();
  due_pushed_ = 0;
}

void GradientSupply::Supply(int parameter, std::vector<int>* next) {
  const int count = stepped_.Expect(parameter);
  if (count == 0) return;
  const int first = chunks_.first_chunk(parameter);
  for (int chunk = first; chunk < first + count; ++chunk) {
    TERRACE_CHECK(state(chunk).to_come > 0);
    ++state(chunk).have_come;
    if (--state(chunk).to_come > 0 || ended_) continue;
    if (!state(chunk).pushed && !IsHeld(chunk)) next->push_back(chunk);
    BecomeDue(chunk);
  }
}

void GradientSupply::End(std::vector<int>* next) {
  if (ended_) return;
  for (int chunk = 0; chunk < chunks_.size(); ++chunk) {
    if (IsDue(chunk)) continue;
    if (state(chunk).sent_back) next->push_back(chunk);
    BecomeDue(chunk);
  }
  ended_ = true;
}

void GradientSupply::BecomeDue(int chunk) {
  if (state(chunk).pushed) ++due_pushed_;
  state(chunk).sent_back = false;
}

bool GradientSupply::IsHeld(int chunk) const {
  return std::any_of(held_.begin(), held_.end(), [chunk](const HeldPin& held) {
    return held.chunk == chunk;
  });
}

bool GradientSupply::IsDue(int chunk) const {
  return !gradual_ || ended_ || state(chunk).to_come == 0;
}

bool GradientSupply::IsVoid(int chunk) const {
  return gradual_ && IsDue(chunk) && state(chunk).have_come == 0;
}

void GradientSupply::OnPushed(int chunk) {
  if (!gradual_) return;
  state(chunk).pushed = true;
  if (IsDue(chunk)) ++due_pushed_;
}

void GradientSupply::OnTaken(int chunk) {
  if (!gradual_) return;
  TERRACE_CHECK(state(chunk).pushed);
  state(chunk).pushed = false;
  if (IsDue(chunk)) --due_pushed_;
}

void GradientSupply::Hold(int chunk, Pin pin) {
  held_.push_back({chunk, std::move(pin)});
}

std::optional<GradientSupply::HeldPin> GradientSupply::TakeDue() {
  const auto due =
      std::find_if(held_.begin(), held_.end(),
                   [this](const HeldPin& held) { return IsDue(held.chunk); });
  if (due == held_.end()) return std::nullopt;
  HeldPin taken = std::move(*due);
  held_.erase(due);
  return taken;
}

std::optional<int> GradientSupply::SendBackLast() {
  const auto last =
      std::find_if(held_.rbegin(), held_.rend(),
                   [this](const HeldPin& held) { return !IsDue(held.chunk); });
  if (last == held_.rend()) return std::nullopt;
  const int chunk = last->chunk;
  last->pin.ReleaseUnchanged();
  held_.erase(std::next(last).base());
  SendBack(chunk);
  return chunk;
}

void GradientSupply::SendBack(int chunk) {
  TERRACE_CHECK(!IsDue(chunk));
  state(chunk).sent_back = true;
}

std::vector<int> GradientSupply::ReleaseHeld() {
  std::vector<int> chunks;
  for (HeldPin& held : held_) {
    held.pin.ReleaseUnchanged();
    chunks.push_back(held.chunk);
  }
  held_.clear();
  return chunks;
}

int GradientSupply::early() const {
  return static_cast<int>(std::count_if(
      held_.begin(), held_.end(),
      [this](const HeldPin& held) { return !IsDue(held.chunk); }));
}

}  // namespace terrace
