#include "runtime/tensor/tensor_life.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace terrace {
namespace {

void CountFill(const Tensor& tensor, const Copy& copy, int64_t times,
               TierFills* fills) {
  const TierId tier = copy.place.tier();
  TierFill& fill = fills->At(tier);
  fill.tensors += times;
  const int64_t bytes = times * copy.place.extent().size_bytes;
  if (copy.pins > 0) {
    fill.pinned_bytes += bytes;
    return;
  }
  const bool is_newer = IsWorkingTier(tier)
                            ? copy.delivered() && IsNewerThanBelow(tensor, tier)
                            : IsNewerThanBelow(tensor);
  (is_newer ? fill.dirty_bytes : fill.clean_bytes) += bytes;
}

}  // namespace

// A tensor's part is out of the sums as long as this lives; or one copy's, as
// what changes is that alone, of which no keeper need know.
class Tensor::Change {
 public:
  explicit Change(const Tensor& tensor, const Copy* copy = nullptr)
      : tensor_(tensor), copy_(copy) {
    Count(-1);
  }
  ~Change() {
    Count(1);
    ImageKeeper* const keeper = tensor_.keeper_;
    if (keeper != nullptr && copy_ == nullptr) keeper->OnChanged(tensor_);
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  void Count(int64_t times) const {
    TierFills* const fills = tensor_.fills_;
    if (fills == nullptr) return;
    if (copy_ == nullptr) return CountFills(tensor_, times, fills);
    CountFill(tensor_, *copy_, times, fills);
  }

  const Tensor& tensor_;
  const Copy* const copy_;
};

void CountFills(const Tensor& tensor, int64_t times, TierFills* fills) {
  for (const Copy& copy : tensor.all()) {
    CountFill(tensor, copy, times, fills);
  }
}

Copy& Tensor::get(TierId tier) {
  const Copy* const copy = at(tier);
  TERRACE_CHECK(copy != nullptr);
  return const_cast<Copy&>(*copy);
}

// Of working tiers the one that keeps the newest contents: while it is read it
// is not idle, so that no write-back begins beside the fetch.
const Copy* Tensor::SourceFor(TierId to) const {
  if (generation_ == 0 || !loss_.ok()) return nullptr;
  const Copy* best = nullptr;
  for (const Copy& copy : copies_) {
    const TierId tier = copy.place.tier();
    if (tier == to || copy.generation != generation_) continue;
    const bool is_better =
        best == nullptr || !IsWorkingTier(best->place.tier()) ||
        (IsWorkingTier(tier) && KeepsBefore(tier, best->place.tier()));
    if (is_better) best = &copy;
  }
  return best;
}

TierId Tensor::KeptAt() const {
  TierId keeps = kNoTier;
  if (generation_ == 0 || !loss_.ok()) return keeps;
  for (const Copy& copy : copies_) {
    const TierId tier = copy.place.tier();
    if (copy.generation != generation_ || !IsWorkingTier(tier)) continue;
    if (keeps == kNoTier || KeepsBefore(tier, keeps)) keeps = tier;
  }
  return keeps;
}

bool Tensor::Fetchable() const {
  return generation_ != 0 && generation_ == GenerationBelow(*this) &&
         loss_.ok();
}

void Tensor::GivePlace(Reservation place) {
  const Change change(*this);
  TERRACE_CHECK(resting() == nullptr && !IsWorkingTier(place.tier()));
  Copy copy;
  copy.place = std::move(place);
  copies_.push_back(std::move(copy));
}

void Tensor::BeginFill(TierId tier, Reservation room, uint64_t transfer) {
  const Change change(*this);
  TERRACE_CHECK(drain_ == Drain::kNone && SourceFor(tier) != nullptr);
  if (at(tier) == nullptr) {
    TERRACE_CHECK(room.tier() == tier && IsWorkingTier(tier));
    copies_.emplace_back();
    copies_.back().place = std::move(room);
  } else {
    const bool again = get(tier).state == CopyState::kChecking;
    TERRACE_CHECK(again && room.empty());
  }
  get(tier).state = CopyState::kFilling;
  transfer_ = transfer;
}

void Tensor::Filled(TierId tier) {
  Copy& copy = get(tier);
  TERRACE_CHECK(copy.state == CopyState::kFilling);
  copy.state = CopyState::kChecking;
}

void Tensor::Checked(TierId tier) {
  const Change change(*this);
  Copy& copy = get(tier);
  TERRACE_CHECK(copy.state == CopyState::kChecking);
  copy.state = CopyState::kWhole;
  copy.generation = generation_;
}

Reservation Tensor::FillFailed(TierId tier) {
  const Change change(*this);
  Copy& copy = get(tier);
  TERRACE_CHECK(Arriving(tier));
  Reservation room = std::move(copy.place);
  copies_.erase(copies_.begin() + (&copy - copies_.data()));
  write_pinned_ = false;  // its holds go with it
  return room;
}

void Tensor::BeginRead(TierId tier) {
  Copy& copy = get(tier);
  TERRACE_CHECK(copy.generation == generation_ && !write_pinned_);
  ++copy.reads;
}

void Tensor::EndRead(TierId tier) {
  Copy& copy = get(tier);
  TERRACE_CHECK(copy.reads > 0);
  --copy.reads;
}

void Tensor::BeginOverwrite(Reservation room) {
  const Change change(*this);
  TERRACE_CHECK(at(room.tier()) == nullptr && drain_ == Drain::kNone);
  Copy copy;
  copy.place = std::move(room);
  copy.state = CopyState::kUndefined;
  copies_.push_back(std::move(copy));
}

void Tensor::Hold(TierId tier, Access access) {
  Copy& copy = get(tier);
  const Change change(*this, &copy);
  const bool writes = access != Access::kRead;
  TERRACE_CHECK(!write_pinned_ && (!writes || pins() == 0));
  TERRACE_CHECK(!writes || drain_ == Drain::kNone);
  ++copy.pins;
  write_pinned_ = writes;
}

void Tensor::Unhold(TierId tier, Access access) {
  Copy& copy = get(tier);
  const Change change(*this, &copy);
  TERRACE_CHECK(copy.pins > 0);
  --copy.pins;
  if (access != Access::kRead) write_pinned_ = false;
}

void Tensor::Publish(TierId tier) {
  const Change change(*this);
  Copy& copy = get(tier);
  TERRACE_CHECK(copy.delivered() && write_pinned_);
  copy.generation = ++generation_;
  copy.state = CopyState::kWhole;
}

void Tensor::BeginDrain(uint64_t transfer, TierId from) {
  TERRACE_CHECK(Idle(from) && resting() != nullptr);
  drain_ = Drain::kSealing;
  transfer_ = transfer;
}

void Tensor::BeginMove(bool in_place, uint64_t transfer) {
  const Change change(*this);
  TERRACE_CHECK(drain_ == Drain::kSealing);
  drain_ = Drain::kMoving;
  transfer_ = transfer;
  if (!in_place) return;
  // It is torn from here until it is whole.
  Copy& below = const_cast<Copy&>(*resting());
  below.generation = 0;
  below.state = CopyState::kPlace;
}

void Tensor::Drained(Reservation second, uint64_t generation) {
  const Change change(*this);
  TERRACE_CHECK(drain_ == Drain::kMoving || drain_ == Drain::kLate);
  Copy& below = const_cast<Copy&>(*resting());
  if (!second.empty()) below.place = std::move(second);
  below.generation = generation;
  below.state = CopyState::kWhole;
  drain_ = Drain::kNone;
}

void Tensor::EndDrain(bool late) {
  TERRACE_CHECK(drain_ != Drain::kNone);
  drain_ = late ? Drain::kLate : Drain::kNone;
}

void Tensor::Drop(TierId tier) {
  const Change change(*this);
  const Copy* const copy = at(tier);
  TERRACE_CHECK(drain_ == Drain::kNone && !Arriving(tier));
  if (copy != nullptr) {
    TERRACE_CHECK(copy->pins == 0 && copy->reads == 0);
    copies_.erase(copies_.begin() + (copy - copies_.data()));
  }
  if (delivered()) return;  // another one, which still has to go down
  refusals.Forget();
  refusals.TryAgain();
}

void Tensor::Lose(absl::Status why) {
  const Change change(*this);
  TERRACE_CHECK(!why.ok());
  loss_ = std::move(why);
}

void Tensor::Restore(const TensorImage& image, Reservation place,
                     Reservation room) {
  const Change change(*this);
  TERRACE_CHECK(copies_.empty() && generation_ == 0);
  generation_ = image.generation;
  const auto add = [this](Reservation taken, uint64_t generation,
                          CopyState otherwise) {
    if (taken.empty()) return;
    Copy copy;
    copy.place = std::move(taken);
    copy.generation = generation;
    copy.state = generation > 0 ? CopyState::kWhole : otherwise;
    copies_.push_back(std::move(copy));
  };
  add(std::move(place), image.below.generation, CopyState::kPlace);
  add(std::move(room), image.memory.generation, CopyState::kUndefined);
  if (!image.is_lost) return;
  loss_ = absl::DataLossError(
      absl::StrCat("tensor '", spec.name, "' was lost before"));
}

absl::Status CheckInvariants(const Tensor& tensor) {
  auto broken = [&tensor](const char* rule) {
    return absl::InternalError(
        absl::StrCat("tensor '", tensor.spec.name, "': ", rule));
  };
  const Copy* const below = tensor.resting();
  const bool drains = tensor.drain() != Drain::kNone;
  if (tensor.write_pinned() && tensor.pins() != 1) {
    return broken("a write pin is not alone");
  }
  if (tensor.write_pinned() && drains) {
    return broken("a transfer runs out of a write pin");
  }
  TierId dirty = kNoTier;
  for (const Copy& each : tensor.copies_) {
    const TierId tier = each.place.tier();
    if (!IsWorkingTier(tier) || !tensor.Dirty(tier)) continue;
    if (dirty != kNoTier) return broken("dirty on two tiers");
    dirty = tier;
  }
  if (!tensor.delivered() && drains) return broken("a transfer out of no copy");
  if (dirty != kNoTier && below != nullptr &&
      below->generation >= tensor.generation()) {
    return broken("a dirty copy above a current one");
  }
  int resting = 0;
  for (const Copy& each : tensor.copies_) {
    if (each.place.empty()) return broken("a copy without room");
    if (each.generation > tensor.generation()) {
      return broken("newer than its newest");
    }
    if (!IsWorkingTier(each.place.tier())) {
      if (++resting > 1) return broken("more copies than tiers");
      continue;
    }
    if (each.state == CopyState::kPlace) {
      return broken("an empty place where customers work");
    }
    if (each.state == CopyState::kWhole &&
        each.generation != tensor.generation()) {
      return broken("a stale copy where customers work");
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace
