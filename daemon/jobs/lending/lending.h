// A host's memory among jobs that together ask for more than there is: those
// that have more than their share lend what is beyond it, and have it back as
// soon as there is room. A runtime that lends has its tensors there leave, the
// ones that it has pinned and its queues' windows stay (runtime/residency/
// lent_room.h), and it goes on in less memory.
//
// Who asks for more than its share is refused at once; who is not waits, until
// it has the memory, or those that were to lend have said that they cannot. No
// quota is met by lending: what a job, or its user, may not have, it may not
// have of others either.
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
  // Somebody waits already, who comes first.
  bool IsWaitedFor() const { return !waiting_.empty(); }

  // A session's memory, of which so much is lent, or not had yet. `runtime`
  // outlives the session here.
  void Join(int64_t session, const JobName& job, int64_t bytes, int64_t lent,
            AskedRuntime* runtime);
  // What was lent of it, or not had.
  int64_t Leave(int64_t session);

  // Hears what runtimes have lent, answers those that wait, and has runtimes
  // lend or take back. To be called when anything has changed, and at next().
  void Serve(absl::Time now);
  absl::Time next() const;

 private:
  struct Lender {
    JobName job;
    int64_t bytes = 0;
    int64_t lent = 0;        // that is not charged to it
    bool has_begun = false;  // else it waits for its memory
    AskedRuntime* runtime = nullptr;
    // What its runtime was told to lend in all, and has not answered yet.
    bool is_asked = false;
    uint64_t ticket = 0;
    int64_t asked_bytes = 0;
    // Its answer; and it cannot lend what it was told to.
    Lent said;
    bool is_spent = false;
  };
  struct Waiting {
    uint64_t number = 0;
    RoomWait wait;
  };

  // Of lenders, in their order, of those that wait to grow, and of those that
  // are kept.
  std::vector<TierClaim> Claims() const;
  int64_t ShareOf(const Waiting& waiting) const;
  void HearRuntimes();
  void HearWaits();
  std::optional<absl::Status> AnswerOf(const Waiting& waiting, absl::Time now);
  void Answer(const Waiting& waiting, absl::Status answer);
  bool IsAnyAsked() const;
  void Ask(absl::Time now);
  void Ask(Lender& lender, int64_t bytes, absl::Duration patience);
  // As much as there is room for, down to so many bytes; what it lends then.
  int64_t TakeBack(Lender& lender, int64_t bytes);
  absl::Status BeyondShare(const absl::Status& taken, int64_t share) const;
  std::string Holders() const;
  // What those said that could not lend all.
  std::string Said() const;

  TierLedger& ledger_;
  const std::string tier_;
  RoomWaits& waits_;
  const KeptClaims kept_;
  uint64_t tickets_ = 0;
  std::map<int64_t, Lender> lenders_;  // by session
  std::deque<Waiting> waiting_;        // in the order in which they came
};

}  // namespace terrace
