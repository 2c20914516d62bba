#include "daemon/links/shared_link.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {
namespace {

// One that waits looks again by then, should all be stopped that would wake it.
constexpr absl::Duration kLook = absl::Seconds(1);

size_t IndexOf(IoDirection direction) { return static_cast<size_t>(direction); }

}  // namespace

// Outlives its share by a wake that is under way.
class SharedLink::Waker {
 public:
  explicit Waker(std::function<void()> wake) : wake_(std::move(wake)) {}

  void Wake() {
    MutexLock lock(mutex_);
    if (!is_shut_) wake_();
  }
  void Shut() {
    MutexLock lock(mutex_);
    is_shut_ = true;
  }

 private:
  const std::function<void()> wake_;
  Mutex
      mutex_;  // held while wake runs, so that Shut can promise that none does
  bool is_shut_ ABSL_GUARDED_BY(mutex_) = false;
};

class SharedLink::Share final : public LinkShare {
 public:
  Share(SharedLink& link, int leaf, std::shared_ptr<Waker> waker)
      : link_(link), leaf_(leaf), waker_(std::move(waker)) {}
  ~Share() override {
    waker_->Shut();
    link_.Leave(leaf_);
  }

  int64_t piece_bytes() const override { return link_.piece_bytes(); }
  int64_t limit_bytes() const override { return link_.limit_bytes(); }
  void OnClass(absl::Time now, IoClass io_class) override {
    link_.OnClass(now, io_class);
  }
  void OnAnswer(absl::Time now, int64_t bytes, bool is_read,
                bool has_more) override {
    link_.OnAnswer(now, bytes, is_read, has_more);
  }
  // One that waits is woken.
  bool MayTake(const LinkPiece& piece) const override {
    return !waits_ || piece.io_class < asked_;
  }
  bool Take(const LinkPiece& piece) override {
    is_there_ = true;
    waits_ = !link_.Take(leaf_, piece);
    asked_ = piece.io_class;
    return !waits_;
  }
  void Give(IoDirection direction, int64_t size_bytes) override {
    link_.Give(leaf_, direction, size_bytes);
  }
  void Rest() override {
    if (!is_there_ && !HasGrants()) return;
    waits_ = false;
    is_there_ = link_.Rest(leaf_);
  }
  absl::Time NextEvent() const override {
    if (!waits_ && !HasGrants()) return absl::InfiniteFuture();
    return link_.NextEvent(leaf_, waits_);
  }

 private:
  // Of anybody. Who made one on this thread sees it.
  bool HasGrants() const {
    return link_.grants_.load(std::memory_order_relaxed) > 0;
  }

  SharedLink& link_;
  const int leaf_;
  const std::shared_ptr<Waker> waker_;
  bool is_there_ = false;  // asked, and has not rested since
  bool waits_ = false;     // and was refused
  IoClass asked_ = IoClass::kWriteBack;
};

SharedLink::~SharedLink() {
  MutexLock lock(mutex_);
  TERRACE_CHECK(members_.empty());
}

std::unique_ptr<LinkShare> SharedLink::Join(const Job& job,
                                            const Weights& weights,
                                            std::function<void()> wake) {
  auto waker = std::make_shared<Waker>(std::move(wake));
  const absl::Time now = clock_.Now();
  int leaf = FairOrder::kNone;
  {
    MutexLock lock(mutex_);
    Forget();
    leaf = order_.Add(NodeOf(job, weights), 1);
    Member& member = members_[leaf];
    member.waker = waker;
    member.seen = now;
  }
  return std::make_unique<Share>(*this, leaf, std::move(waker));
}

int SharedLink::NodeOf(const Job& job, const Weights& weights) {
  const auto [user, is_new_user] =
      users_.try_emplace(job.user, FairOrder::kNone);
  if (is_new_user) user->second = order_.Add(FairOrder::kRoot, weights.user);
  const auto [node, is_new_job] = jobs_.try_emplace(job, FairOrder::kNone);
  if (is_new_job) node->second = order_.Add(user->second, weights.job);
  order_.SetWeight(user->second, weights.user);
  order_.SetWeight(node->second, weights.job);
  return node->second;
}

void SharedLink::Forget() {
  const auto is_over =
      [this](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        const int node = entry.second;
        if (order_.HasChildren(node) || order_.IsAhead(node)) return false;
        order_.Remove(node);
        return true;
      };
  std::erase_if(jobs_, is_over);
  std::erase_if(users_, is_over);
}

void SharedLink::SetWeights(absl::FunctionRef<Weights(const Job&)> weights_of) {
  std::vector<Job> jobs;
  {
    MutexLock lock(mutex_);
    for (const auto& [job, node] : jobs_) jobs.push_back(job);
  }
  for (const Job& job : jobs) {
    const Weights weights = weights_of(job);
    MutexLock lock(mutex_);
    if (jobs_.contains(job)) NodeOf(job, weights);
  }
}

SharedLink::Use SharedLink::use() const {
  MutexLock lock(mutex_);
  return {use_.bytes(), limits_.holding().bytes(), expired_turns_};
}

int64_t SharedLink::piece_bytes() const {
  MutexLock lock(mutex_);
  return limits_.holding().piece_bytes();
}

int64_t SharedLink::limit_bytes() const {
  MutexLock lock(mutex_);
  return limits_.holding().bytes();
}

absl::Time SharedLink::Latest(absl::Time now) {
  latest_ = std::max(latest_, now);
  return latest_;
}

void SharedLink::OnClass(absl::Time now, IoClass io_class) {
  MutexLock lock(mutex_);
  limits_.OnClass(Latest(now), io_class);
}

void SharedLink::OnAnswer(absl::Time now, int64_t bytes, bool is_read,
                          bool has_more) {
  MutexLock lock(mutex_);
  limits_.OnAnswer(Latest(now), bytes, is_read, has_more || !order_.empty());
}

SharedLink::Member& SharedLink::See(int leaf, absl::Time now) {
  Member& member = members_.at(leaf);
  member.seen = std::max(member.seen, now);
  if (member.is_set_aside) use_.EnterAll(member.use);
  member.is_set_aside = false;
  return member;
}

bool SharedLink::Take(int leaf, const LinkPiece& piece) {
  const absl::Time now = clock_.Now();
  Wakers wakers;
  bool is_taken = false;
  {
    MutexLock lock(mutex_);
    Member& member = See(leaf, now);
    FitGrant(leaf, member, piece);
    if (!member.has_grant) {
      StopWaiting(leaf, member);
      member.ask = piece;
      member.waits = true;
      ++waiting_[IndexOf(piece.direction)];
      order_.Wait(leaf, piece.io_class);
      wakers = Grant(leaf, now);
    }
    is_taken = member.has_grant;
    if (is_taken) {
      member.has_grant = false;
      --grants_;
      member.use.Enter(piece.direction, piece.size_bytes);
    }
  }
  WakeAll(wakers);
  return is_taken;
}

void SharedLink::Give(int leaf, IoDirection direction, int64_t size_bytes) {
  const absl::Time now = clock_.Now();
  Wakers wakers;
  {
    MutexLock lock(mutex_);
    Member& member = See(leaf, now);
    member.use.Leave(direction, size_bytes);
    use_.Leave(direction, size_bytes);
    wakers = Grant(leaf, now);
  }
  WakeAll(wakers);
}

// One that has something in flight is there: its queue asks again when that has
// ended.
bool SharedLink::Rest(int leaf) {
  const absl::Time now = clock_.Now();
  Wakers wakers;
  bool is_there = false;
  {
    MutexLock lock(mutex_);
    Member& member = See(leaf, now);
    StopWaiting(leaf, member);
    DropGrant(leaf, member);
    is_there = !member.use.empty();
    if (!is_there) order_.Rest(leaf);
    wakers = Grant(leaf, now);
  }
  WakeAll(wakers);
  return is_there;
}

// Nobody of this thread looks after what it grants: all that wait are woken.
void SharedLink::Leave(int leaf) {
  const absl::Time now = clock_.Now();
  Wakers wakers;
  {
    MutexLock lock(mutex_);
    Member& member = See(leaf, now);
    StopWaiting(leaf, member);
    order_.Rest(leaf);
    DropGrant(leaf, member);
    use_.LeaveAll(member.use);
    members_.erase(leaf);
    order_.Remove(leaf);
    wakers = Grant(FairOrder::kNone, now);
    for (const auto& [other, each] : members_) {
      if (each.waits) wakers.push_back(each.waker);
    }
  }
  WakeAll(wakers);
}

void SharedLink::StopWaiting(int leaf, Member& member) {
  if (!member.waits) return;
  member.waits = false;
  --waiting_[IndexOf(member.ask.direction)];
  order_.Pause(leaf);
}

// What is kept was for the piece that was its first when it asked.
void SharedLink::FitGrant(int leaf, Member& member, const LinkPiece& piece) {
  if (!member.has_grant) return;
  const LinkPiece& granted = member.granted;
  if (granted.direction != piece.direction ||
      granted.size_bytes < piece.size_bytes) {
    return DropGrant(leaf, member);
  }
  use_.Leave(granted.direction, granted.size_bytes);
  use_.Enter(piece.direction, piece.size_bytes);
  order_.Refund(leaf, granted.size_bytes - piece.size_bytes);
}

void SharedLink::DropGrant(int leaf, Member& member) {
  if (!member.has_grant) return;
  member.has_grant = false;
  --grants_;
  use_.Leave(member.granted.direction, member.granted.size_bytes);
  order_.Refund(leaf, member.granted.size_bytes);
}

// Those who were woken and did not come, and those who are silent.
void SharedLink::PassOver(absl::Time now) {
  if (order_.empty()) return;
  for (auto& [leaf, member] : members_) {
    if (member.has_grant && now - member.granted_at >= kGrantPatience) {
      DropGrant(leaf, member);
      ++expired_turns_;
    }
    if (!member.is_set_aside && !member.use.empty() &&
        now - member.seen >= kSilence) {
      use_.LeaveAll(member.use);
      member.is_set_aside = true;
    }
  }
}

// As of OwnLink::Take, of all that wait.
bool SharedLink::MayGo(const Member& member) const {
  const LinkPiece& piece = member.ask;
  const InFlightLimit& limit = limits_.holding();
  if (!piece.leaves_half || !limit.is_mixed()) return true;
  if (waiting_[1 - IndexOf(piece.direction)] > 0) return true;
  return use_.LeavesHalf(piece.direction, piece.size_bytes, limit.bytes());
}

SharedLink::Wakers SharedLink::Grant(int own, absl::Time now) {
  Wakers wakers;
  PassOver(now);
  const int64_t limit_bytes = limits_.holding().bytes();
  order_.SetLimit(limit_bytes);
  while (true) {
    const int leaf =
        order_.Next([this](int each) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return MayGo(members_.at(each));
        });
    if (leaf == FairOrder::kNone) return wakers;
    Member& member = members_.at(leaf);
    const LinkPiece& piece = member.ask;
    if (!use_.HasRoom(piece.size_bytes, limit_bytes)) return wakers;
    use_.Enter(piece.direction, piece.size_bytes);
    order_.Serve(leaf, piece.size_bytes);
    StopWaiting(leaf, member);
    member.granted = piece;
    member.has_grant = true;
    member.granted_at = now;
    ++grants_;
    if (leaf != own) wakers.push_back(member.waker);
  }
}

void SharedLink::WakeAll(const Wakers& wakers) {
  for (const std::shared_ptr<Waker>& each : wakers) each->Wake();
}

absl::Time SharedLink::NextEvent(int leaf, bool asked) const {
  MutexLock lock(mutex_);
  const Member& own = members_.at(leaf);
  // Its turn has come, or has come and passed.
  if (own.has_grant || (asked && !own.waits)) return own.seen;
  if (order_.empty()) return absl::InfiniteFuture();
  absl::Time next = own.waits ? own.seen + kLook : absl::InfiniteFuture();
  for (const auto& [other, each] : members_) {
    if (each.has_grant) next = std::min(next, each.granted_at + kGrantPatience);
  }
  return next;
}

}  // namespace terrace
