#include "runtime/residency/write_back.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "terrace/runtime.h"

namespace terrace {

void WriteBack::Start(std::vector<QueueError>* errors) {
  looked_at_.swap(dirty_);
  for (Tensor* const tensor : looked_at_) {
    const TierResidency& residency = parts_.working->OfDirty(*tensor);
    const bool may_go =
        IsDevice(residency.id()) || tensor->resting() != nullptr;
    const bool goes = tensor->Dirty(residency.id()) &&
                      residency.GoesDown(*tensor) && may_go &&
                      !tensor->refusals.gave_up();
    if (!goes || !tensor->Idle(residency.id())) {
      // By then they may do better.
      const bool still =
          tensor->drain() == Drain::kNone || tensor->drain() == Drain::kLate;
      if (still) tensor->refusals.Forget();
      // A writer on another tier: what was to leave is not, until its end.
      if (tensor->write_pinned()) parts_.working->Stay(*tensor);
      // The end of what reads it for the other tier tells nobody; that of a
      // pin does.
      if (goes && tensor->being_read() && !tensor->Pinned(residency.id())) {
        dirty_.push_back(tensor);
      }
      continue;
    }
    if (!StartOne(*tensor, errors)) dirty_.push_back(tensor);
  }
  looked_at_.clear();
}

void WriteBack::StartLeaving(std::vector<Tensor*>* leaving,
                             std::vector<QueueError>* errors) {
  for (Tensor* const tensor : *leaving) {
    if (!StartOne(*tensor, errors)) dirty_.push_back(tensor);
  }
  leaving->clear();
}

bool WriteBack::StartOne(Tensor& tensor, std::vector<QueueError>* errors) {
  const TierResidency& from = parts_.working->OfDirty(tensor);
  TERRACE_CHECK(tensor.Idle(from.id()));
  if (!IsDevice(from.id())) return StartDown(tensor, {}, errors);
  if (from.residents().is_ranked()) {
    const bool waits = std::any_of(
        lowering_.begin(), lowering_.end(),
        [&tensor](const Lowering& each) { return each.tensor == &tensor; });
    if (!waits) lowering_.push_back({.tensor = &tensor});
    return true;
  }
  if (ComeDown(tensor)) return true;
  if (tensor.resting() == nullptr) return false;
  const int64_t bytes = ResidentBytes(tensor.spec.size_bytes);
  Reservation slot = parts_.staging->Take(StagingRoom::Way::kDown, bytes);
  if (!slot.empty()) return StartDown(tensor, std::move(slot), errors);
  absl::Status hope = parts_.staging->Hope(StagingRoom::Way::kDown, bytes);
  if (absl::IsCancelled(hope)) {
    // It is too large for all staging that there is: memory makes room.
    TierResidency& memory = parts_.working->at(kDramTier);
    if (memory.residents().leaving() > 0) return false;
    std::vector<Tensor*> leaving;
    memory.EvictForRange(bytes, &leaving);
    StartLeaving(&leaving, errors);
    return ComeDown(tensor);
  }
  if (!absl::IsDeadlineExceeded(hope)) return false;
  tensor.refusals.GiveUp(std::move(hope));
  GiveUp(tensor, errors);
  return true;
}

bool WriteBack::has_new_lowering() const {
  return !lowering_.empty() && lowering_.back().seeker.number == 0;
}

bool WriteBack::MayComeDown(const Tensor& tensor) const {
  const TierResidency& from = parts_.working->OfDirty(tensor);
  return IsDevice(from.id()) && tensor.Dirty(from.id()) &&
         from.GoesDown(tensor) && tensor.Idle(from.id()) &&
         !tensor.refusals.gave_up();
}

void WriteBack::ComeDownInto(Tensor& tensor, Reservation room) {
  parts_.transfers->StartFill(tensor, std::move(room), IoClass::kWriteBack);
}

bool WriteBack::PassDown(Tensor& tensor, Reservation range,
                         std::vector<QueueError>* errors) {
  if (range.empty() || tensor.resting() == nullptr) return false;
  return StartDown(tensor, std::move(range), errors);
}

bool WriteBack::ComeDown(Tensor& tensor) {
  Reservation room = parts_.working->at(kDramTier).FindRoom(tensor);
  if (room.empty()) return false;
  parts_.transfers->StartFill(tensor, std::move(room), IoClass::kWriteBack);
  return true;
}

bool WriteBack::StartDown(Tensor& tensor, Reservation slot,
                          std::vector<QueueError>* errors) {
  TERRACE_CHECK(tensor.resting() != nullptr);
  WriteTarget target = parts_.placement->ChooseTarget(tensor);
  if (target.room == WriteTarget::Room::kNone) GiveUp(tensor, errors);
  if (target.room != WriteTarget::Room::kFound) {
    return target.room == WriteTarget::Room::kNone;
  }
  parts_.transfers->StartDrain(tensor, target.tier, std::move(target.second),
                               std::move(slot));
  return true;
}

void WriteBack::OnSealed(Tensor& tensor, bool writer_waits) {
  if (!writer_waits || yielded_.contains(&tensor)) {
    const TierId to = parts_.transfers->DrainTier(tensor);
    parts_.transfers->StartMove(tensor, parts_.placement->failures(to));
    return;
  }
  yielded_.insert(&tensor);
  GiveUpSealed(tensor);
  parts_.working->OfDirty(tensor).Stay(tensor);
  OnDirty(tensor);
}

void WriteBack::GiveUpSealed(Tensor& tensor) {
  parts_.placement->GiveUp(parts_.transfers->GiveUp(tensor));
}

void WriteBack::Yield(Tensor& tensor) {
  if (tensor.drain() != Drain::kMoving) return;
  if (yielded_.insert(&tensor).second) parts_.transfers->Cancel(tensor);
}

void WriteBack::OnWritten(const Arrival& arrival) {
  Tensor& tensor = *arrival.tensor;
  if (arrival.moved) parts_.placement->OnRelocated(arrival.edge.to);
  tensor.refusals.Forget();
  tensor.refusals.TryAgain();
  yielded_.erase(&tensor);
  EndLeave(tensor, parts_.working->at(arrival.edge.from));
}

// What is clean by now goes if it was to.
void WriteBack::EndLeave(Tensor& tensor, TierResidency& residency) {
  const bool leaves = residency.residents().IsLeaving(tensor);
  if (leaves && tensor.Idle(residency.id())) residency.Drop(tensor);
  residency.Stay(tensor);
}

void WriteBack::OnCameDown(const Arrival& arrival) {
  Tensor& tensor = *arrival.tensor;
  tensor.refusals.Forget();
  tensor.refusals.TryAgain();
  yielded_.erase(&tensor);
  EndLeave(tensor, parts_.working->at(arrival.edge.from));
  // Fetched ahead into a slot it would stay there, dirty.
  if (parts_.working->at(arrival.edge.to).WindowOf(tensor) != nullptr) {
    OnDirty(tensor);
  }
}

void WriteBack::OnComeDownFailed(const Arrival& arrival, bool is_registered,
                                 std::vector<QueueError>* errors) {
  Tensor& tensor = *arrival.tensor;
  TierResidency& from = parts_.working->at(arrival.edge.from);
  const bool waits = from.GoesDown(tensor) && IsNewerThanBelow(tensor);
  from.Stay(tensor);
  if (!is_registered || !waits) return;
  // What did not come down for its own sake has another way.
  const bool is_down = IsDevice(from.id()) && IsMemory(arrival.edge.to);
  if (absl::IsCancelled(arrival.status) || !is_down) return OnDirty(tensor);
  tensor.refusals.GiveUp(arrival.status);
  GiveUp(tensor, errors);
}

void WriteBack::OnWriteFailed(const Arrival& arrival, bool is_registered,
                              std::vector<QueueError>* errors) {
  Tensor& tensor = *arrival.tensor;
  TierResidency& residency = parts_.working->at(arrival.edge.from);
  if (absl::IsCancelled(arrival.status)) {
    residency.Stay(tensor);
    tensor.refusals.Forget();
    if (residency.WindowOf(tensor) != nullptr) OnDirty(tensor);
    return;
  }
  if (!is_registered) {
    // The tier's own report says so; a request for the slot hears why.
    residency.Stay(tensor);
    if (arrival.late) tensor.refusals.GiveUp(arrival.status);
    return;
  }
  if (IsWorkingTier(arrival.edge.to)) {
    // No resting tier has anything against it: it did not come off its device.
    tensor.refusals.GiveUp(arrival.status);
    return GiveUp(tensor, errors);
  }
  // The tensor stays where it is, dirty. Where another tier takes it only the
  // refusing one's own report says so. While it is late its bytes are not to
  // be touched.
  tensor.refusals.Add(arrival.edge.to, arrival.status);
  if (arrival.late || tensor.refusals.count() >= parts_.resting->count()) {
    GiveUp(tensor, errors);
    return;
  }
  errors->push_back({-1, arrival.status});
  tensor.refusals.TryAgain();
  OnDirty(tensor);
}

void WriteBack::GiveUp(Tensor& tensor, std::vector<QueueError>* errors) {
  parts_.working->OfDirty(tensor).Stay(tensor);
  tensor.refusals.Forget();
  tensor.refusals.GiveUp();
  failed_.push_back(&tensor);
  errors->push_back({tensor.customer, tensor.refusals.error(), &tensor});
}

void WriteBack::SetUnsaid(const Tensor& tensor, int64_t queue) {
  if (queue < 0) {
    unsaid_.erase(&tensor);
  } else {
    unsaid_[&tensor] = queue;
  }
}

absl::Status WriteBack::TakeUnsaid(int64_t queue) {
  absl::Status first;
  for (const Tensor* const tensor : failed_) {
    const auto found = unsaid_.find(tensor);
    if (found == unsaid_.end() || found->second != queue) continue;
    unsaid_.erase(found);
    first.Update(tensor->refusals.error());
  }
  return first;
}

void WriteBack::RetryFailed() {
  parts_.placement->TryAgain();
  // For balance alone a full disk is not asked over and over.
  if (!failed_.empty()) parts_.resting->ForgetRefusals();
  for (Tensor* const tensor : std::exchange(failed_, {})) {
    if (!tensor->refusals.gave_up()) continue;  // its copy was dropped since
    if (tensor->drain() == Drain::kLate || tensor->being_read()) {
      failed_.push_back(tensor);
      continue;
    }
    tensor->refusals.TryAgain();
    const TierResidency& residency = parts_.working->OfDirty(*tensor);
    if (residency.WindowOf(*tensor) != nullptr) OnDirty(*tensor);
  }
}

absl::Status WriteBack::Unwritten() const {
  for (const Tensor* const tensor : failed_) {
    const absl::Status error = tensor->refusals.error();
    if (error.ok()) continue;  // its copy was dropped since
    const Window* const window =
        parts_.working->OfDirty(*tensor).WindowOf(*tensor);
    if (window != nullptr && !window->closing()) continue;
    return Reworded(error,
                    absl::StrCat("; not written back: '", tensor->spec.name,
                                 "': ", absl::string_view(error.message())));
  }
  return absl::OkStatus();
}

void WriteBack::Forget(const Tensor& tensor) {
  std::erase(dirty_, &tensor);
  std::erase_if(lowering_, [&tensor](const Lowering& each) {
    return each.tensor == &tensor;
  });
  std::erase(failed_, &tensor);
  unsaid_.erase(&tensor);
  yielded_.erase(&tensor);
}

}  // namespace terrace
