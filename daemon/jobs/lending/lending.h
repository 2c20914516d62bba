// A host's memory among jobs that together ask for more than there is: those
// that have more than their share lend what is beyond it, and have it back as
// soon as there is room. A runtime that lends has its tensors there leave, the
// ones that it has pinned and its queues' windows stay (runtime/residency/
// lent_room.h), and it goes on in less memory.
//
// Who asks for more than its share is refused at once; who is not waits, until
// it has the memory, or those that were to lend have said that they cannot.
// Those that wait are served in the order in which they came, but none keeps
// from others what is enough for them. No quota is met by lending: what a job,
// or its user, may not have, it may not have of others either.
//
// It belongs to the server's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/jobs/asked_runtime.h"
#include "daemon/jobs/lending/room_waits.h"
#include "daemon/jobs/tier_ledger.h"

namespace terrace {

class Lending {
 public:
  // What is kept for processes that have not gone on yet, and may lend then.
  using KeptClaims = std::function<std::vector<TierClaim>()>;

  // Both outlive it. `tier`: the name of the memory.
  Lending(TierLedger* ledger, std::string tier, RoomWaits* waits,
          KeptClaims kept)
      : ledger_(*ledger),
        tier_(std::move(tier)),
        waits_(*waits),
        kept_(std::move(kept)) {}

  // Whether so many bytes may be had by lending, which could not be taken.
  // ResourceExhausted, which names the limit, and those that have the memory:
  // they never will.
  absl::Status CheckMayCome(const JobName& job, int64_t bytes,
                            const absl::Status& taken) const;

  // A session's memory, of which so much is lent; or which it waits for, and
  // has not begun. `runtime` outlives the session here.
  void Join(int64_t session, const JobName& job, int64_t bytes, int64_t lent,
            bool has_begun, AskedRuntime* runtime);
  // What was lent of it, or not had.
  int64_t Leave(int64_t session);
  // It waits for memory; and it does so no more, as its process has gone.
  bool IsWaiting(int64_t session) const;
  void GiveUp(int64_t session);

  // Hears what runtimes have lent, answers those that wait, and has runtimes
  // lend or take back. To be called when anything has changed, and at next().
  void Serve(absl::Time now);
  absl::Time next() const;

 private:
  struct Lender {
    JobName job;
    int64_t bytes = 0;
    int64_t lent = 0;  // that is not charged to it
    bool has_begun = false;
    AskedRuntime* runtime = nullptr;
    // What its runtime was told to lend in all, and has not answered yet.
    bool is_asked = false;
    uint64_t ticket = 0;
    int64_t asked_bytes = 0;
    // Its answer; and it cannot lend what it was told to.
    Lent said;
    bool is_spent = false;
    // Its pages could not be had again: it is not told to take any before.
    absl::Time takes_back_from = absl::InfinitePast();
  };
  using Lenders = std::map<int64_t, Lender>;  // by session
  struct Waiting {
    uint64_t number = 0;
    RoomWait wait;
  };
  // What is shared among those that lend, those that wait, and those kept.
  struct Claims {
    std::vector<int64_t> lenders;   // sessions, of the first of the claims
    std::vector<uint64_t> growing;  // waits, of the next
    std::vector<TierClaim> all;
  };

  Claims ClaimsOf() const;
  // What it may keep of what it waits for.
  int64_t ShareOf(const Waiting& waiting) const;
  // A session that grows serves nobody, and so lends nothing meanwhile.
  bool Grows(int64_t session) const;
  TierClaim GrowthClaim(const RoomWait& wait) const;
  void HearRuntimes(absl::Time now);
  void HearWaits();
  // Nothing: it goes on waiting. OK: it is charged.
  std::optional<absl::Status> AnswerOf(const Waiting& waiting, absl::Time now);
  void Answer(const Waiting& waiting, absl::Status answer);
  bool IsAnyAsked() const;
  void Ask(absl::Time now);
  void Ask(Lender& lender, int64_t bytes, absl::Time now,
           absl::Duration patience);
  // As much as there is room for, down to so many bytes; what it lends then.
  int64_t TakeBack(Lender& lender, int64_t bytes);
  absl::Status BeyondShare(const absl::Status& taken, int64_t share,
                           uid_t uid) const;
  // Those that have the memory: that user's by name, and all others together.
  std::string Holders(uid_t uid) const;
  // What those said that could not lend all, likewise.
  std::string Said(uid_t uid) const;

  TierLedger& ledger_;
  const std::string tier_;
  RoomWaits& waits_;
  const KeptClaims kept_;
  uint64_t tickets_ = 0;
  Lenders lenders_;
  std::deque<Waiting> waiting_;  // in the order in which they came
};

}  // namespace terrace
