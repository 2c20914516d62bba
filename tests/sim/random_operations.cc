#include "tests/sim/random_operations.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/sim/drawn_world.h"

namespace terrace {
namespace {

constexpr int kTensors = 14;
constexpr int kMostCustomers = 4;
constexpr int64_t kLargest = 5 * 4096;
// In one without an end customers wait for each other's pins, and in the end
// every tensor is one that a writer discarded.
constexpr int kStretch = 400;

absl::Duration DrawTime(std::mt19937_64& random) {
  return absl::Microseconds(1 << random() % 15);
}

bool IsTyped(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsUnavailable(status) ||
         absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status);
}

bool SameBytes(absl::Span<const std::byte> a, absl::Span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

RandomOperations::RandomOperations(uint64_t seed, Trouble trouble,
                                   Transcript* transcript, Tiers tiers)
    : random_(seed),
      trouble_(trouble),
      faulty_(trouble == Trouble::kAny),
      world_(DrawWorld(seed, trouble, transcript, tiers)) {
  for (int i = 0; i < 3; ++i) ChangePace();
  for (int i = 0; i < kTensors; ++i) {
    Truth truth;
    truth.size_bytes = static_cast<int64_t>(1 + Draw(kLargest));
    truth.bytes.resize(static_cast<size_t>(truth.size_bytes));
    const auto id = world_.runtime().Register(
        {.name = absl::StrCat("t", i), .size_bytes = truth.size_bytes});
    EXPECT_TRUE(id.ok()) << id.status();
    truth.id = *id;
    tensors_.push_back(std::move(truth));
  }
}

void RandomOperations::Run(int count) {
  while (true) {
    const int stretch = std::min(count, kStretch);
    RunStretch(stretch);
    count -= stretch;
    if (count == 0 || testing::Test::HasFailure()) return;
    for (int i = 0; i < kTensors; ++i) {
      if (tensors_[static_cast<size_t>(i)].lost) Replace(i);
    }
  }
}

void RandomOperations::RunStretch(int count) {
  for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) {
    DoOne();
    EXPECT_TRUE(world_.broken().ok())
        << "operation " << i << ": " << world_.broken();
  }
  world_.ClearFaults();
  faults_on_ = false;
  if (!testing::Test::HasFailure()) Drain();
  held_.clear();
  for (size_t i = 0; i < customers_.size(); ++i) {
    CloseOne(static_cast<int>(i));
  }
  if (!testing::Test::HasFailure()) Audit();
}

int64_t RandomOperations::lost_tensors() const {
  return std::count_if(tensors_.begin(), tensors_.end(),
                       [](const Truth& truth) { return truth.lost; });
}

int64_t RandomOperations::moved_tensors() {
  int64_t moved = 0;
  for (const TierStats& path : world_.runtime().GetStats().paths()) {
    moved += path.tensors_moved_in;
  }
  for (const auto& memory : world_.mapped()) {
    for (const MediumCall& call : memory->faults.calls()) {
      moved += call.direction == IoDirection::kWrite ? 1 : 0;
    }
  }
  return moved;
}

int RandomOperations::PickCustomer() {
  if (customers_.empty()) return -1;
  const auto customer = static_cast<int>(Draw(customers_.size()));
  const bool open = customers_[static_cast<size_t>(customer)].queue != nullptr;
  return open ? customer : -1;
}

void RandomOperations::DoOne() {
  const uint64_t what = Draw(100);
  const int customer = PickCustomer();
  if (what < 6 || customer < 0) return Open();
  if (what < 8) return CloseOne(customer);
  if (what < 36) return Push(customer);
  if (what < 56) return Take(customer, DrawTime(random_));
  if (what < 80) {
    if (!held_.empty()) ReleaseAt(Draw(held_.size()), false);
    return;
  }
  if (what < 88) return Step(customer);
  if (what < 90) return Acquire();
  if (what < 92) return Hint();
  if (what < 94) return ChangeFaults();
  if (what < 96) return Replace(static_cast<int>(Draw(kTensors)));
  if (what < 97) return ChangePace();
  world_.Pass(DrawTime(random_));
}

void RandomOperations::Open() {
  Customer customer;
  customer.slot_bytes = static_cast<int64_t>(1 + Draw(kLargest));
  customer.slots = static_cast<int>(1 + Draw(4));
  std::string tier;
  const std::vector<std::string>& several = world_.working_tiers();
  if (!several.empty()) {
    tier = several[Draw(several.size())];
  } else if (world_.hbm() != nullptr && Draw(2) == 0) {
    tier = "hbm";
  }
  auto opened =
      world_.runtime().OpenQueue(customer.slot_bytes, customer.slots,
                                 world_.Now() + DrawTime(random_), tier);
  if (!opened.ok()) {
    EXPECT_TRUE(absl::IsResourceExhausted(opened.status())) << opened.status();
    return;
  }
  customer.queue = *std::move(opened);
  for (Customer& old : customers_) {
    if (old.queue != nullptr) continue;
    old = std::move(customer);
    return;
  }
  if (customers_.size() < kMostCustomers) {
    customers_.push_back(std::move(customer));
  }
}

// Its pins go first, as request.h asks; what it has pushed, or has not taken
// yet, is cancelled: as if it had never been asked for.
void RandomOperations::CloseOne(int customer) {
  ReleaseAll(customer);
  customers_[static_cast<size_t>(customer)] = Customer();
}

void RandomOperations::Push(int customer) {
  Customer& each = customers_[static_cast<size_t>(customer)];
  Pushed pushed;
  const auto count = 1 + Draw(static_cast<uint64_t>(std::min(each.slots, 3)));
  for (uint64_t i = 0; i < count * 4 && pushed.wants.size() < count; ++i) {
    const auto tensor = static_cast<int>(Draw(kTensors));
    const Truth& truth = tensors_[static_cast<size_t>(tensor)];
    if (truth.size_bytes > each.slot_bytes) continue;
    const auto& taken = pushed.tensors;
    if (std::find(taken.begin(), taken.end(), tensor) != taken.end()) continue;
    const auto access =
        static_cast<Access>(Draw(truth.written ? 3 : 2) + !truth.written);
    if (!truth.written && access != Access::kOverwrite) pushed.unwritten = true;
    pushed.tensors.push_back(tensor);
    pushed.wants.push_back({truth.id, access});
  }
  if (pushed.wants.empty()) return;
  const Time now = world_.Now();
  pushed.deadline =
      Draw(4) == 0 ? now + DrawTime(random_) : absl::InfiniteFuture();
  const uint64_t tag = next_tag_++;
  const absl::Status status =
      each.queue->Push(pushed.wants, tag, pushed.deadline);
  EXPECT_TRUE(status.ok()) << status;
  each.pushed[tag] = std::move(pushed);
}

void RandomOperations::Take(int customer, absl::Duration patience) {
  Customer& each = customers_[static_cast<size_t>(customer)];
  Receive(customer, each.queue->Next(world_.Now() + patience));
}

void RandomOperations::Receive(int customer, absl::StatusOr<Ready> ready) {
  Customer& each = customers_[static_cast<size_t>(customer)];
  if (!ready.ok()) {
    if (absl::IsDeadlineExceeded(ready.status())) return;
    ASSERT_TRUE(absl::IsFailedPrecondition(ready.status())) << ready.status();
    const bool holds = std::any_of(
        held_.begin(), held_.end(),
        [&](const Held& held) { return held.customer == customer; });
    EXPECT_TRUE(each.pushed.empty() || holds)
        << "blocked by pins that it does not have";
    return;
  }
  const auto found = each.pushed.find(ready->tag);
  ASSERT_NE(found, each.pushed.end()) << "a tag twice, or never pushed";
  const Pushed pushed = std::move(found->second);
  each.pushed.erase(found);
  if (!ready->pins.ok()) {
    ++failed_groups_;
    Explain(ready->pins.status(), pushed);
    return;
  }
  ASSERT_EQ(ready->pins->size(), pushed.wants.size());
  for (size_t i = 0; i < pushed.wants.size(); ++i) {
    Hold(customer, pushed.tensors[i], pushed.wants[i].access, ready->tag,
         std::move((*ready->pins)[i]));
  }
}

void RandomOperations::Hold(int customer, int tensor, Access access,
                            uint64_t tag, Pin pin) {
  Truth& truth = tensors_[static_cast<size_t>(tensor)];
  ASSERT_EQ(pin.tensor(), truth.id);
  // A reader may have been given it before: the pin was only not taken yet.
  const bool may_be_older = access == Access::kRead && tag < truth.lost_at;
  EXPECT_TRUE(!truth.lost || may_be_older) << "a lost tensor came back";
  EXPECT_EQ(truth.writers, 0) << "pinned beside a writer";
  if (access != Access::kRead) {
    EXPECT_EQ(truth.readers, 0) << "a writer beside readers";
  }
  if (access != Access::kOverwrite) {
    EXPECT_TRUE(truth.written) << "t" << tensor << " was never written";
    EXPECT_TRUE(SameBytes(PayloadOf(pin, truth.size_bytes), truth.bytes))
        << "t" << tensor;
    ++pins_checked_;
  }
  truth.maybe_lost = false;
  ++(access == Access::kRead ? truth.readers : truth.writers);
  held_.push_back({std::move(pin), tensor, access, customer});
}

// Whether the history explains that a group failed this way.
void RandomOperations::Explain(const absl::Status& status,
                               const Pushed& pushed) {
  if (absl::IsFailedPrecondition(status)) {
    EXPECT_TRUE(pushed.unwritten) << status;
    return;
  }
  ASSERT_TRUE(IsTyped(status)) << status;
  if (absl::IsDataLoss(status)) {
    bool lost = false;
    for (const int tensor : pushed.tensors) {
      Truth& truth = tensors_[static_cast<size_t>(tensor)];
      lost |= truth.lost || truth.maybe_lost;
      if (pushed.tensors.size() > 1) continue;
      truth.lost = true;
      truth.lost_at = next_tag_;
    }
    EXPECT_TRUE(lost || faulty_) << status;
    return;
  }
  const bool late = world_.Now() >= pushed.deadline;
  EXPECT_TRUE(faulty_ || (late && absl::IsResourceExhausted(status))) << status;
}

void RandomOperations::Scribble(absl::Span<std::byte> data) {
  const size_t begin = Draw(data.size());
  const size_t count = Draw(data.size() - begin) + 1;
  std::mt19937_64 bytes(random_());
  for (std::byte& each : data.subspan(begin, count)) {
    each = static_cast<std::byte>(bytes());
  }
}

// Ends a pin in a random way; gently: so that nothing can be lost.
void RandomOperations::ReleaseAt(size_t index, bool gently) {
  Held held = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  Truth& truth = tensors_[static_cast<size_t>(held.tensor)];
  --(held.access == Access::kRead ? truth.readers : truth.writers);
  const uint64_t how = Draw(10);
  const bool writes = held.access != Access::kRead;
  const absl::Span<std::byte> data = PayloadOf(held.pin, truth.size_bytes);
  if (held.access != Access::kOverwrite) {
    EXPECT_TRUE(SameBytes(data, truth.bytes)) << "changed in a pin";
  }
  if (how == 0 && !gently) {
    if (writes) {
      Scribble(data);
      truth.maybe_lost = truth.written;
    }
    return held.pin.Discard();
  }
  if (how <= 2 || !writes) {
    // A release publishes, so an overwriter that wrote nothing must say so.
    const bool release = how == 1 && held.access != Access::kOverwrite;
    return release ? held.pin.Release() : held.pin.ReleaseUnchanged();
  }
  if (held.access == Access::kOverwrite)
    std::fill(data.begin(), data.end(), static_cast<std::byte>(how));
  Scribble(data);
  truth.bytes.assign(data.begin(), data.end());
  truth.written = true;
  held.pin.Release();
}

void RandomOperations::ReleaseAll(int customer) {
  for (size_t i = held_.size(); i-- > 0;) {
    if (held_[i].customer == customer) ReleaseAt(i, true);
  }
}

void RandomOperations::Step(int customer) {
  Customer& each = customers_[static_cast<size_t>(customer)];
  if (!each.step_open) {
    EXPECT_TRUE(each.queue->BeginStep(++each.step).ok());
    each.step_open = true;
    return;
  }
  if (Draw(8) == 0) {
    EXPECT_TRUE(absl::IsFailedPrecondition(each.queue->BeginStep(each.step)));
    return;
  }
  each.step_open = false;
  const absl::Status status = Draw(6) == 0
                                  ? each.queue->AbortStep()
                                  : each.queue->CommitStep({each.step});
  if (status.ok()) return;
  EXPECT_TRUE(IsTyped(status)) << status;
  EXPECT_TRUE(faulty_ || absl::IsDataLoss(status)) << status;
}

void RandomOperations::Acquire() {
  const auto tensor = static_cast<int>(Draw(kTensors));
  const Truth& truth = tensors_[static_cast<size_t>(tensor)];
  Pushed pushed;
  pushed.tensors = {tensor};
  const auto access = static_cast<Access>(Draw(3));
  pushed.unwritten = !truth.written && access != Access::kOverwrite;
  pushed.deadline = world_.Now() + DrawTime(random_);
  auto pin = world_.runtime().Acquire(truth.id, access, pushed.deadline);
  if (pin.ok()) return Hold(-1, tensor, access, next_tag_, *std::move(pin));
  // No room for its window, or not in time.
  if (absl::IsResourceExhausted(pin.status())) return;
  if (absl::IsDeadlineExceeded(pin.status())) return;
  Explain(pin.status(), pushed);
}

void RandomOperations::Hint() {
  std::vector<TensorId> ids;
  for (uint64_t i = 0; i <= Draw(4); ++i) {
    ids.push_back({static_cast<int64_t>(Draw(kTensors + 1))});
  }
  world_.runtime().Prefetch(ids);
}

bool RandomOperations::IsPushed(int tensor) const {
  for (const Customer& each : customers_) {
    for (const auto& [tag, pushed] : each.pushed) {
      const auto& all = pushed.tensors;
      if (std::find(all.begin(), all.end(), tensor) != all.end()) return true;
    }
  }
  return false;
}

// Another tensor in the place of one that goes, unless it is pinned. Whether a
// group that was not taken yet still wants it cannot be told from here.
void RandomOperations::Replace(int tensor) {
  if (IsPushed(tensor)) return;
  Truth& truth = tensors_[static_cast<size_t>(tensor)];
  Truth fresh;
  fresh.size_bytes = static_cast<int64_t>(1 + Draw(kLargest));
  fresh.bytes.resize(static_cast<size_t>(fresh.size_bytes));
  const auto id = world_.runtime().Register(
      {.name = absl::StrCat("t", tensor, ".", ++replaced_),
       .size_bytes = fresh.size_bytes});
  if (!id.ok()) {
    EXPECT_TRUE(faulty_ && IsTyped(id.status())) << id.status();
    return;
  }
  fresh.id = *id;
  const absl::Status gone = world_.runtime().Unregister(truth.id);
  if (truth.readers + truth.writers > 0) {
    EXPECT_TRUE(absl::IsFailedPrecondition(gone)) << gone;
    EXPECT_TRUE(world_.runtime().Unregister(fresh.id).ok());
    return;
  }
  EXPECT_TRUE(gone.ok()) << gone;
  truth = std::move(fresh);
}

}  // namespace terrace
