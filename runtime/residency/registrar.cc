#include "runtime/residency/registrar.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "terrace/runtime.h"

namespace terrace {

void Registrar::Answer(RequestId& id, terrace::Answer answer) const {
  parts_.ports->Deliver(std::exchange(id, {}), std::move(answer));
}

void Registrar::Register(RegisterRequest request) {
  Registration registration;
  for (const TensorSpec& spec : request.specs) {
    parts_.heartbeat->Beat();
    const absl::StatusOr<Tensor*> added = parts_.table->Add(spec);
    if (!added.ok()) {
      TakeBack(registration);
      Answer(request.id, added.status());
      return;
    }
    registration.tensors.push_back(*added);
  }
  registration.request = std::move(request);
  registration.refused.assign(static_cast<size_t>(parts_.resting->count()), 0);
  registrations_.push_back(std::move(registration));  // behind what waits
}

// The last one first, so that no id is spent.
void Registrar::TakeBack(const Registration& registration) {
  for (size_t i = registration.tensors.size(); i-- > 0;) {
    parts_.table->TakeBack(*registration.tensors[i]);
  }
}

void Registrar::ServeRegistrations() {
  for (auto each = registrations_.begin(); each != registrations_.end();) {
    each = Serve(*each) ? registrations_.erase(each) : each + 1;
  }
}

// True when it is answered; else it waits for its tier to grow, or for a write
// that finds out whether a tier takes any again.
bool Registrar::Serve(Registration& registration) {
  while (registration.placed < registration.tensors.size()) {
    parts_.heartbeat->Beat();
    if (!PlaceNext(registration)) return false;
    if (registration.request.id.empty()) return true;  // refused
  }
  std::vector<TensorId> ids;
  for (const Tensor* const tensor : registration.tensors) {
    parts_.heartbeat->Beat();
    parts_.table->Admit(*tensor);
    ids.push_back(tensor->id);
  }
  Answer(registration.request.id, std::move(ids));
  return true;
}

// False: it waits.
bool Registrar::PlaceNext(Registration& registration) {
  Tensor& tensor = *registration.tensors[registration.placed];
  const int64_t bytes = ResidentBytes(tensor.spec.size_bytes);
  while (tensor.resting() == nullptr && parts_.resting->count() > 0) {
    if (registration.tier == kNoTier) {
      PathFlags refused;
      for (const int64_t least : registration.refused) {
        refused.push_back(least > 0 && bytes >= least);
      }
      registration.tier = parts_.placement->ChooseHome(refused, bytes);
    }
    if (registration.tier == kNoTier) {
      if (parts_.placement->trying()) return false;  // a write finds one out
      absl::Status refused = registration.refusal.ok()
                                 ? parts_.placement->NoneIsUsable()
                                 : std::move(registration.refusal);
      TakeBack(registration);
      Answer(registration.request.id, std::move(refused));
      return true;
    }
    absl::StatusOr<std::optional<Reservation>> place =
        parts_.resting->at(registration.tier).Allocate(bytes, /*must=*/true);
    if (!place.ok()) {
      RefuseTier(registration, place.status());
      continue;
    }
    if (!place->has_value()) return false;
    tensor.GivePlace(std::move(**place));
  }
  registration.tier = kNoTier;
  ++registration.placed;
  return true;
}

// The next tier is tried; the last one's answer counts, with all messages.
void Registrar::RefuseTier(Registration& registration,
                           const absl::Status& why) {
  const std::string others =
      registration.refusal.ok()
          ? ""
          : absl::StrCat("; ",
                         absl::string_view(registration.refusal.message()));
  registration.refusal =
      Reworded(why, absl::StrCat(absl::string_view(why.message()), others));
  const Tensor& tensor = *registration.tensors[registration.placed];
  const int place = parts_.resting->IndexOf(registration.tier);
  registration.refused[static_cast<size_t>(place)] =
      ResidentBytes(tensor.spec.size_bytes);
  registration.tier = kNoTier;
}

void Registrar::CheckGrowth(absl::Time now, std::vector<QueueError>* errors) {
  for (const TierId tier : parts_.resting->ids()) {
    const absl::Status status = parts_.resting->at(tier).CheckGrowth(now);
    if (status.ok()) continue;
    parts_.placement->SetWriteError(tier, status);
    errors->push_back({-1, status});
    for (Registration& each : registrations_) {
      if (each.tier == tier) RefuseTier(each, status);
    }
  }
}

void Registrar::On(const Grown& event) {
  const GrowthAnswer answer = parts_.resting->at(event.tier).OnGrown(event);
  // What had asked has gone on, or looks elsewhere.
  if (answer.status.ok() || answer.late || !answer.must) return;
  // It was the first one's need; the others' may be less.
  for (Registration& each : registrations_) {
    if (each.tier != event.tier) continue;
    RefuseTier(each, answer.status);
    return;
  }
}

void Registrar::Unregister(UnregisterRequest request, uint64_t after) {
  ends_.push_back({std::move(request), nullptr, after});
}

void Registrar::ServeEnds(const WantedTensors& wanted, uint64_t processed) {
  for (auto end = ends_.begin(); end != ends_.end();) {
    const bool is_wanted = wanted.Contains(end->request.tensor);
    end = ServeEnd(*end, is_wanted, processed) ? ends_.erase(end) : end + 1;
  }
}

// True when nothing is left to do. Once no group wants the tensor its own
// transfers end, and it is gone; a late one of them keeps its places.
bool Registrar::ServeEnd(End& end, bool is_wanted, uint64_t processed) {
  if (end.tensor == nullptr && !BeginEnd(end, is_wanted, processed)) {
    return end.request.id.empty();
  }
  Tensor& tensor = *end.tensor;
  const Drain drain = tensor.drain();
  if (tensor.ArrivingAt() != kNoTier || drain == Drain::kSealing ||
      drain == Drain::kMoving) {
    return false;
  }
  // A late transfer may still read a copy.
  const bool is_read = drain != Drain::kNone || tensor.being_read();
  // Who goes on from an image has all of it, or nothing.
  if (!end.request.id.empty()) parts_.table->FreeName(tensor);
  if (!is_read) parts_.working->DropAll(tensor);
  if (!end.request.id.empty()) Answer(end.request.id, absl::OkStatus());
  if (parts_.transfers->Has(tensor)) return false;
  parts_.write_back->Forget(tensor);
  parts_.table->Erase(tensor);
  return true;
}

// Whether the tensor may go now. If not, it is refused, or waited for: what a
// closed queue still fetches, or had ready, ends by itself.
bool Registrar::BeginEnd(End& end, bool is_wanted, uint64_t processed) {
  const TensorId id = end.request.tensor;
  Tensor* const tensor = parts_.table->Find(id);
  absl::Status refused;
  if (tensor == nullptr) {
    refused = absl::InvalidArgumentError(absl::StrCat("no tensor ", id.value));
  } else if (parts_.pins->IsPinned(*tensor) && processed >= end.after) {
    refused = absl::FailedPreconditionError(
        absl::StrCat("tensor '", tensor->spec.name, "' is pinned"));
  } else if (is_wanted) {
    refused = absl::FailedPreconditionError(absl::StrCat(
        "tensor '", tensor->spec.name, "' is wanted by a group of a queue"));
  }
  if (!refused.ok()) {
    Answer(end.request.id, refused);
    return false;
  }
  if (tensor->pins() > 0) return false;
  end.tensor = tensor;
  parts_.table->Retire(*tensor);
  const TierId filling = tensor->ArrivingAt();
  const bool comes =
      filling != kNoTier && tensor->at(filling)->state == CopyState::kFilling;
  if (comes || tensor->drain() == Drain::kMoving) {
    parts_.transfers->Cancel(*tensor);
  }
  return true;
}

void Registrar::Refuse(const absl::Status& why) {
  for (Registration& each : registrations_) Answer(each.request.id, why);
  registrations_.clear();
  for (End& end : ends_) Answer(end.request.id, why);
  ends_.clear();
}

}  // namespace terrace
