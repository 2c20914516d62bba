// One link, a disk path's, that the runtimes of several jobs share. All of them
// together have in flight what one would have alone, by a limit that is
// measured over all that they move; and whose piece goes next is decided by
// FairOrder. What one leaves is the others'.
//
// A share asks for a piece that its queue would issue next. Where it is not its
// turn, or there is no room, it waits, and when its turn comes the room is kept
// for it and it is woken. One that does not take what is kept for it within
// kGrantPatience loses its turn, and the next one has it: a queue whose thread
// has stopped holds up nobody for longer. What such a queue has in flight stops
// to count once nothing was heard of it for kSilence, until it is heard again.
// Somebody is always awake in time to see to both: shares that wait have a time
// at which they look again.
//
// Thread-safe; each share is its queue's thread's. The lock is a leaf, and is
// held across no call out.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "aio/queue/in_flight_limits.h"
#include "aio/queue/in_flight_use.h"
#include "aio/queue/link_share.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "daemon/links/fair_order.h"

namespace terrace {

class SharedLink {
 public:
  // Much longer than a thread takes to be woken, much shorter than anybody
  // notices.
  static constexpr absl::Duration kGrantPatience = absl::Milliseconds(5);
  // Longer than a device takes for what a limit lets in.
  static constexpr absl::Duration kSilence = absl::Seconds(2);

  // Whose processes share. Jobs are a user's own.
  struct Job {
    uint32_t user = 0;
    std::string name;

    friend auto operator<=>(const Job&, const Job&) = default;
  };
  // Among users, and among the jobs of that user.
  struct Weights {
    int user = 1;
    int job = 1;
  };
  struct Use {
    int64_t in_flight_bytes = 0;  // kept for somebody included
    int64_t limit_bytes = 0;
    int64_t expired_turns = 0;
  };

  // `clock` outlives the link.
  SharedLink(const IoQueueOptions& options, Clock& clock)
      : clock_(clock), limits_(options) {}
  // All shares are gone.
  ~SharedLink();
  SharedLink(const SharedLink&) = delete;
  SharedLink& operator=(const SharedLink&) = delete;

  // One process of the job, whose weights hold from here on. `wake` is called
  // on threads of other shares, one at a time, until the share is gone.
  std::unique_ptr<LinkShare> Join(const Job& job, const Weights& weights,
                                  std::function<void()> wake);
  // Of all that share.
  void SetWeights(absl::FunctionRef<Weights(const Job&)> weights_of);

  Use use() const;

 private:
  class Share;
  class Waker;
  using Wakers = std::vector<std::shared_ptr<Waker>>;

  struct Member {
    std::shared_ptr<Waker> waker;
    absl::Time seen;  // when it was heard last
    LinkPiece ask;    // while it waits
    bool waits = false;
    LinkPiece granted;
    bool has_grant = false;  // which it has not taken yet
    absl::Time granted_at;
    InFlightUse use;  // what it has taken
    bool is_set_aside = false;
  };

  int64_t piece_bytes() const;
  int64_t limit_bytes() const;
  void OnClass(absl::Time now, IoClass io_class);
  void OnAnswer(absl::Time now, int64_t bytes, bool is_read, bool has_more);
  bool Take(int leaf, const LinkPiece& piece);
  void Give(int leaf, IoDirection direction, int64_t size_bytes);
  // Whether it is there all the same.
  bool Rest(int leaf);
  void Leave(int leaf);
  // `asked`: it was refused, and has not asked again.
  absl::Time NextEvent(int leaf, bool asked) const;

  int NodeOf(const Job& job, const Weights& weights)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Users and jobs that nobody is of, and that have no more than their share.
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Later calls come with earlier times, as threads do.
  absl::Time Latest(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Member& See(int leaf, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopWaiting(int leaf, Member& member)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FitGrant(int leaf, Member& member, const LinkPiece& piece)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropGrant(int leaf, Member& member)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PassOver(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayGo(const Member& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Keeps what room there is for those whose turn it is. Who is to be woken for
  // it: all but `own`, whose thread this is.
  Wakers Grant(int own, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void WakeAll(const Wakers& wakers);

  Clock& clock_;
  mutable Mutex mutex_;
  // Grants that are not taken; read without the lock by who only looks.
  std::atomic<int> grants_ = 0;
  absl::Time latest_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  InFlightLimits limits_ ABSL_GUARDED_BY(mutex_);
  InFlightUse use_ ABSL_GUARDED_BY(mutex_);
  FairOrder order_ ABSL_GUARDED_BY(mutex_);
  std::array<int, 2> waiting_ ABSL_GUARDED_BY(mutex_) = {};  // by direction
  std::map<int, Member> members_ ABSL_GUARDED_BY(mutex_);    // by leaf
  std::map<uint32_t, int> users_ ABSL_GUARDED_BY(mutex_);
  std::map<Job, int> jobs_ ABSL_GUARDED_BY(mutex_);
  int64_t expired_turns_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
