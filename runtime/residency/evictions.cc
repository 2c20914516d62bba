#include "runtime/residency/evictions.h"

#include <utility>

namespace terrace {

void Evictions::Begin(const EvictRequest& request) {
  if (request_.has_value()) End();
  request_ = request;
  evicted_ = {.ticket = request.ticket};
  after_ = {-1};
  is_late_ = false;
  has_looked_ = false;
}

bool Evictions::Serve(absl::Time now, const WantedTensors& wanted,
                      std::vector<QueueError>* errors) {
  if (!request_.has_value()) return false;
  CountThoseThatLeft();
  is_late_ |= now >= request_->deadline;
  bool has_more = false;
  const int64_t gone = evicted_.gone.tensors;
  if (!has_looked_) {
    std::vector<Tensor*> start;
    has_looked_ = LookAtSome(wanted, &start);
    parts_.write_back->StartLeaving(&start, errors);
    has_more = !has_looked_ && (is_late_ || leaving_.size() < kMostLeaving);
    // A group may have waited for that room.
    has_more |= evicted_.gone.tensors != gone;
  }
  if (has_looked_ && (leaving_.empty() || is_late_)) End();
  return has_more;
}

bool Evictions::LookAtSome(const WantedTensors& wanted,
                           std::vector<Tensor*>* start) {
  int looked_at = 0;
  bool is_all = true;
  parts_.table->ForEachAfter(after_, [&](const Tensor& tensor) {
    const bool is_full = !is_late_ && leaving_.size() >= kMostLeaving;
    is_all = !is_full && looked_at < kTensorsATurn;
    if (!is_all) return false;
    ++looked_at;
    after_ = tensor.id;
    for (TierResidency* const each : parts_.working->memories()) {
      LookAt(*parts_.table->Find(tensor.id), *each, wanted, start);
    }
    return true;
  });
  return is_all;
}

void Evictions::LookAt(Tensor& tensor, TierResidency& residency,
                       const WantedTensors& wanted,
                       std::vector<Tensor*>* start) {
  const Copy* const copy = tensor.at(residency.id());
  if (copy == nullptr) return;
  const int64_t bytes = copy->place.extent().size_bytes;
  if (residency.residents().IsLeaving(tensor)) {
    leaving_.push_back({tensor.id, residency.id(), bytes});
    return;
  }
  Evicted::Part* const stays = WhyItStays(tensor, *copy, residency, wanted);
  if (stays != nullptr) return stays->Add(bytes);
  if (is_late_ && IsNewerThanBelow(tensor, residency.id())) {
    return evicted_.moving.Add(bytes);
  }
  if (!residency.Evict(tensor)) return evicted_.gone.Add(bytes);
  leaving_.push_back({tensor.id, residency.id(), bytes});
  start->push_back(&tensor);
}

Evicted::Part* Evictions::WhyItStays(const Tensor& tensor, const Copy& copy,
                                     const TierResidency& residency,
                                     const WantedTensors& wanted) {
  if (copy.pins > 0 || tensor.write_pinned()) return &evicted_.pinned;
  if (!copy.idle() || tensor.drain() != Drain::kNone) return &evicted_.moving;
  if (wanted.Contains(tensor.id)) return &evicted_.wanted;
  if (residency.WindowOf(tensor) != nullptr) return &evicted_.in_windows;
  return residency.MayLeave(tensor) ? nullptr : &evicted_.unwritten;
}

void Evictions::CountThoseThatLeft() {
  std::erase_if(leaving_, [this](const Leaving& each) {
    const Tensor* const tensor = parts_.table->Find(each.tensor);
    const Copy* const copy =
        tensor == nullptr ? nullptr : tensor->at(each.tier);
    if (copy == nullptr) {
      evicted_.gone.Add(each.bytes);
      return true;
    }
    const TierResidency& residency = parts_.working->at(each.tier);
    if (residency.residents().IsLeaving(*tensor)) return false;
    // It stayed after all: somebody had it, or its write failed.
    const bool is_pinned = copy->pins > 0 || tensor->write_pinned();
    const bool has_failed = tensor->refusals.gave_up();
    (is_pinned    ? evicted_.pinned
     : has_failed ? evicted_.unwritten
                  : evicted_.wanted)
        .Add(each.bytes);
    return true;
  });
}

// What still leaves does so without anybody who waits for it.
void Evictions::End() {
  for (const Leaving& each : std::exchange(leaving_, {})) {
    evicted_.moving.Add(each.bytes);
  }
  parts_.ports->Deliver(request_->id, std::exchange(evicted_, {}));
  request_.reset();
}

void Evictions::Refuse(const absl::Status& why) {
  if (!request_.has_value()) return;
  parts_.ports->Deliver(request_->id, why);
  request_.reset();
  leaving_.clear();
}

}  // namespace terrace
