#include "daemon/jobs/lending/lending.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bytes.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

// How many processes a message names.
constexpr size_t kNamedHolders = 8;
// Of a deadline, for what runtimes answer to be heard by then.
constexpr absl::Duration kAnswerTime = absl::Seconds(1);
// After pages could not be had again.
constexpr absl::Duration kRefusedPause = absl::Seconds(1);

}  // namespace

bool Lending::Grows(int64_t session) const {
  return absl::c_any_of(waiting_, [session](const Waiting& each) {
    return each.wait.grows && each.wait.session == session;
  });
}

// With all that the job has beside what its other processes may lend, so that
// who has grown has had that of its share.
TierClaim Lending::GrowthClaim(const RoomWait& wait) const {
  const std::map<std::string, int64_t> use = ledger_.UseOf(wait.job);
  const auto found = use.find(tier_);
  int64_t used = found == use.end() ? 0 : found->second;
  for (const auto& [session, each] : lenders_) {
    const bool lends = each.job == wait.job && !Grows(session);
    if (lends) used -= each.bytes - each.lent;
  }
  return {wait.job, used + wait.bytes, used};
}

Lending::Claims Lending::ClaimsOf() const {
  Claims claims;
  for (const auto& [session, each] : lenders_) {
    if (Grows(session)) continue;
    claims.lenders.push_back(session);
    claims.all.push_back({each.job, each.bytes, each.bytes - each.lent});
  }
  // What a job has beside counts once, however many of it grow.
  std::set<JobName> counted;
  for (const Waiting& each : waiting_) {
    if (!each.wait.grows) continue;
    const bool is_first = counted.insert(each.wait.job).second;
    claims.growing.push_back(each.number);
    claims.all.push_back(is_first ? GrowthClaim(each.wait)
                                  : TierClaim{each.wait.job, each.wait.bytes});
  }
  for (TierClaim& each : kept_()) claims.all.push_back(std::move(each));
  return claims;
}

int64_t Lending::ShareOf(const Waiting& waiting) const {
  const Claims claims = ClaimsOf();
  const std::vector<int64_t> shares = ledger_.SharesOf(tier_, claims.all);
  if (!waiting.wait.grows) {
    const auto found = absl::c_find(claims.lenders, waiting.wait.session);
    if (found == claims.lenders.end()) return 0;
    return shares[static_cast<size_t>(found - claims.lenders.begin())];
  }
  const auto found = absl::c_find(claims.growing, waiting.number);
  const size_t place = claims.lenders.size() +
                       static_cast<size_t>(found - claims.growing.begin());
  return shares[place] - claims.all[place].charged_bytes;
}

absl::Status Lending::CheckMayCome(const JobName& job, int64_t bytes,
                                   const absl::Status& taken) const {
  TERRACE_RETURN_IF_ERROR(ledger_.CheckQuotas(job, tier_, bytes));
  std::vector<TierClaim> claims = ClaimsOf().all;
  claims.push_back({job, bytes});
  const int64_t share = ledger_.SharesOf(tier_, claims).back();
  return bytes <= share ? absl::OkStatus() : BeyondShare(taken, share, job.uid);
}

absl::Status Lending::BeyondShare(const absl::Status& taken, int64_t share,
                                  uid_t uid) const {
  return absl::ResourceExhaustedError(absl::StrCat(
      absl::string_view(taken.message()), "; with what others would lend it ",
      "may have ", std::max(int64_t{0}, share), "; held by ", Holders(uid)));
}

std::string Lending::Holders(uid_t uid) const {
  std::vector<std::string> names;
  int64_t others = 0;
  const auto add = [&](const JobName& job, int64_t bytes, const char* how) {
    if (job.uid != uid && uid != 0) {
      others += bytes;
    } else if (names.size() < kNamedHolders) {
      names.push_back(absl::StrCat(JobText(job), ", ", bytes, how));
    } else if (names.size() == kNamedHolders) {
      names.emplace_back("and more");
    }
  };
  int64_t named = 0;
  for (const auto& [session, each] : lenders_) {
    if (each.has_begun) add(each.job, each.bytes - each.lent, "");
    named += each.bytes - each.lent;
  }
  for (const TierClaim& each : kept_()) {
    add(each.job, each.charged_bytes, ", which has not gone on yet");
    named += each.charged_bytes;
  }
  const int64_t rest = ledger_.UsedOf(tier_) - named;
  if (others > 0) names.push_back(absl::StrCat("other users, ", others));
  if (rest > 0) {
    names.push_back(
        absl::StrCat("what has grown or stays beyond budgets, ", rest));
  }
  return absl::StrJoin(names, "; ");
}

std::string Lending::Said(uid_t uid) const {
  std::string said;
  for (const auto& [session, each] : lenders_) {
    if (!each.is_spent) continue;
    const bool is_named = each.job.uid == uid || uid == 0;
    absl::StrAppend(&said, said.empty() ? ": " : "; ",
                    is_named ? JobText(each.job) : "another user's", " keeps ",
                    each.said.promised_bytes, " bytes for its queues and ",
                    each.said.held_bytes, " that are pinned or on their way");
  }
  return said;
}

void Lending::Join(int64_t session, const JobName& job, int64_t bytes,
                   int64_t lent, bool has_begun, AskedRuntime* runtime) {
  lenders_[session] = {.job = job,
                       .bytes = bytes,
                       .lent = lent,
                       .has_begun = has_begun,
                       .runtime = runtime};
}

int64_t Lending::Leave(int64_t session) {
  const auto found = lenders_.find(session);
  const int64_t lent = found->second.lent;
  lenders_.erase(found);
  return lent;
}

bool Lending::IsWaiting(int64_t session) const {
  return absl::c_any_of(waiting_, [session](const Waiting& each) {
    return each.wait.session == session;
  });
}

void Lending::GiveUp(int64_t session) {
  std::erase_if(waiting_, [&](const Waiting& each) {
    if (each.wait.session != session) return false;
    Answer(each, absl::UnavailableError("its process has gone"));
    return true;
  });
}

void Lending::Serve(absl::Time now) {
  HearRuntimes(now);
  HearWaits();
  for (size_t i = 0; i < waiting_.size();) {
    std::optional<absl::Status> answer = AnswerOf(waiting_[i], now);
    if (!answer.has_value()) {
      ++i;
      continue;
    }
    const Waiting waiting = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    Answer(waiting, *std::move(answer));
  }
  Ask(now);
}

absl::Time Lending::next() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Waiting& each : waiting_) {
    next = std::min(next, each.wait.deadline);
  }
  for (const auto& [session, each] : lenders_) {
    const bool is_paused = each.lent > 0 && !each.is_asked &&
                           each.takes_back_from > absl::InfinitePast();
    if (is_paused) next = std::min(next, each.takes_back_from);
  }
  return next;
}

void Lending::HearRuntimes(absl::Time now) {
  for (auto& [session, each] : lenders_) {
    if (!each.is_asked) continue;
    const std::unique_ptr<Lent> answer = each.runtime->TakeLent();
    if (answer == nullptr || answer->ticket != each.ticket) continue;
    if (answer->bytes > each.lent) {
      ledger_.Give(each.job, tier_, answer->bytes - each.lent);
    } else {
      ledger_.Add(each.job, tier_, each.lent - answer->bytes);
    }
    each.lent = answer->bytes;
    if (!answer->is_over) continue;
    each.is_asked = false;
    each.said = *answer;
    each.is_spent = answer->bytes < each.asked_bytes;
    each.takes_back_from = answer->bytes > each.asked_bytes
                               ? now + kRefusedPause
                               : absl::InfinitePast();
  }
}

void Lending::HearWaits() {
  for (auto& [number, wait] : waits_.TakeNew()) {
    waiting_.push_back({number, std::move(wait)});
    for (auto& [session, each] : lenders_) each.is_spent = false;
  }
}

std::optional<absl::Status> Lending::AnswerOf(const Waiting& waiting,
                                              absl::Time now) {
  const RoomWait& wait = waiting.wait;
  absl::Status taken = ledger_.Take(wait.job, tier_, wait.bytes);
  if (taken.ok()) return taken;
  absl::Status own = ledger_.CheckQuotas(wait.job, tier_, wait.bytes);
  if (!own.ok()) return own;
  const int64_t share = ShareOf(waiting);
  if (wait.bytes > share) return BeyondShare(taken, share, wait.job.uid);
  // Who is asked first answers once it has been asked.
  Ask(now);
  const bool may_come =
      now < wait.deadline && (IsAnyAsked() || !kept_().empty());
  if (may_come) return std::nullopt;
  return absl::ResourceExhaustedError(
      absl::StrCat(absl::string_view(taken.message()),
                   "; others could not lend it in time", Said(wait.job.uid)));
}

void Lending::Answer(const Waiting& waiting, absl::Status answer) {
  const RoomWait& wait = waiting.wait;
  const bool is_charged = answer.ok();
  const bool is_heard = waits_.Answer(waiting.number, std::move(answer));
  if (!is_charged) return;
  const auto found = lenders_.find(wait.session);
  if (!is_heard || found == lenders_.end()) {
    return ledger_.Give(wait.job, tier_, wait.bytes);
  }
  if (wait.grows) return;
  found->second.lent = 0;
  found->second.has_begun = true;
}

bool Lending::IsAnyAsked() const {
  return absl::c_any_of(lenders_,
                        [](const auto& each) { return each.second.is_asked; });
}

void Lending::Ask(absl::Time now) {
  const bool has_lent = absl::c_any_of(lenders_, [](const auto& each) {
    return each.second.lent > 0 || each.second.is_asked;
  });
  if (waiting_.empty() && !has_lent) return;
  absl::Duration patience;
  for (const Waiting& each : waiting_) {
    patience = std::max(patience, each.wait.deadline - now - kAnswerTime);
  }
  const Claims claims = ClaimsOf();
  const std::vector<int64_t> shares = ledger_.SharesOf(tier_, claims.all);
  for (size_t i = 0; i < claims.lenders.size(); ++i) {
    Lender& lender = lenders_.at(claims.lenders[i]);
    const int64_t beyond = std::max(int64_t{0}, lender.bytes - shares[i]);
    if (lender.has_begun) Ask(lender, beyond, now, patience);
  }
}

// `bytes`: that it would lend by its share.
void Lending::Ask(Lender& lender, int64_t bytes, absl::Time now,
                  absl::Duration patience) {
  const int64_t lends = lender.is_asked ? lender.asked_bytes : lender.lent;
  const bool is_paused = now < lender.takes_back_from;
  if (!is_paused) lender.takes_back_from = absl::InfinitePast();
  if (waiting_.empty()) {
    bytes = std::min(bytes, lender.lent);
    if (bytes < lender.lent && is_paused) return;
    if (bytes < lender.lent) bytes = TakeBack(lender, bytes);
  } else {
    bytes = std::max(bytes, lender.lent);
    if (lender.is_spent) return;
  }
  if (bytes == lends) return;
  lender.is_asked = true;
  lender.is_spent = false;
  lender.takes_back_from = absl::InfinitePast();
  lender.asked_bytes = bytes;
  lender.ticket = ++tickets_;
  lender.runtime->Lend({lender.ticket, bytes, patience});
}

int64_t Lending::TakeBack(Lender& lender, int64_t bytes) {
  const int64_t room = RoundDown(
      std::min(lender.lent - bytes, ledger_.RoomOf(lender.job, tier_)),
      kBlockBytes);
  if (room > 0 && ledger_.Take(lender.job, tier_, room).ok()) {
    lender.lent -= room;
  }
  return lender.lent;
}

}  // namespace terrace
