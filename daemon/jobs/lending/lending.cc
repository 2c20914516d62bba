#include "daemon/jobs/lending/lending.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>

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

}  // namespace

std::vector<TierClaim> Lending::Claims() const {
  std::vector<TierClaim> claims;
  for (const auto& [session, each] : lenders_) {
    claims.push_back({each.job, each.bytes, each.bytes - each.lent});
  }
  for (const Waiting& each : waiting_) {
    if (each.wait.session < 0)
      claims.push_back({each.wait.job, each.wait.bytes});
  }
  for (TierClaim& each : kept_()) claims.push_back(std::move(each));
  return claims;
}

absl::Status Lending::CheckMayCome(const JobName& job, int64_t bytes,
                                   const absl::Status& taken) const {
  TERRACE_RETURN_IF_ERROR(ledger_.CheckQuotas(job, tier_, bytes));
  std::vector<TierClaim> claims = Claims();
  claims.push_back({job, bytes});
  const int64_t share = ledger_.SharesOf(tier_, claims).back();
  return bytes <= share ? absl::OkStatus() : BeyondShare(taken, share);
}

absl::Status Lending::BeyondShare(const absl::Status& taken,
                                  int64_t share) const {
  return absl::ResourceExhaustedError(
      absl::StrCat(absl::string_view(taken.message()), "; with what others ",
                   "would lend it may have ", share, "; held by ", Holders()));
}

int64_t Lending::ShareOf(const Waiting& waiting) const {
  const std::vector<int64_t> shares = ledger_.SharesOf(tier_, Claims());
  const auto begins = lenders_.find(waiting.wait.session);
  if (begins != lenders_.end()) {
    return shares[static_cast<size_t>(std::distance(lenders_.begin(), begins))];
  }
  size_t place = lenders_.size();
  for (const Waiting& each : waiting_) {
    if (each.number == waiting.number) break;
    if (each.wait.session < 0) ++place;
  }
  return place < shares.size() ? shares[place] : 0;
}

std::string Lending::Said() const {
  std::string said;
  for (const auto& [session, each] : lenders_) {
    if (!each.is_spent) continue;
    absl::StrAppend(&said, said.empty() ? ": " : "; ", JobText(each.job),
                    " keeps ", each.said.promised_bytes,
                    " bytes for its queues and ", each.said.held_bytes,
                    " that are pinned or on their way");
  }
  return said;
}

std::string Lending::Holders() const {
  std::vector<std::string> names;
  for (const auto& [session, each] : lenders_) {
    if (!each.has_begun) continue;
    if (names.size() == kNamedHolders) {
      names.push_back("and more");
      break;
    }
    names.push_back(
        absl::StrCat(JobText(each.job), ", ", each.bytes - each.lent));
  }
  for (const TierClaim& each : kept_()) {
    names.push_back(absl::StrCat(JobText(each.job), ", ", each.charged_bytes,
                                 ", which has not gone on yet"));
  }
  return absl::StrJoin(names, "; ");
}

void Lending::Join(int64_t session, const JobName& job, int64_t bytes,
                   int64_t lent, AskedRuntime* runtime) {
  lenders_[session] = {.job = job,
                       .bytes = bytes,
                       .lent = lent,
                       .has_begun = lent < bytes,
                       .runtime = runtime};
}

int64_t Lending::Leave(int64_t session) {
  const auto found = lenders_.find(session);
  const int64_t lent = found->second.lent;
  lenders_.erase(found);
  return lent;
}

void Lending::Serve(absl::Time now) {
  HearRuntimes();
  HearWaits();
  // One that waits has those behind it wait, too, or small ones would keep it
  // from its memory for ever.
  while (!waiting_.empty()) {
    std::optional<absl::Status> answer = AnswerOf(waiting_.front(), now);
    if (!answer.has_value()) break;
    Answer(waiting_.front(), *std::move(answer));
    waiting_.pop_front();
  }
  Ask(now);
}

absl::Time Lending::next() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Waiting& each : waiting_) {
    next = std::min(next, each.wait.deadline);
  }
  return next;
}

void Lending::HearRuntimes() {
  for (auto& [session, each] : lenders_) {
    if (!each.is_asked) continue;
    const std::unique_ptr<Lent> answer = each.runtime->TakeLent();
    if (answer == nullptr || answer->ticket != each.ticket) continue;
    each.is_asked = false;
    each.said = *answer;
    each.is_spent = answer->bytes < each.asked_bytes;
    if (answer->bytes > each.lent) {
      ledger_.Give(each.job, tier_, answer->bytes - each.lent);
    } else {
      ledger_.Add(each.job, tier_, each.lent - answer->bytes);
    }
    each.lent = answer->bytes;
  }
}

void Lending::HearWaits() {
  for (auto& [number, wait] : waits_.TakeNew()) {
    waiting_.push_back({number, std::move(wait)});
    for (auto& [session, each] : lenders_) each.is_spent = false;
  }
}

// Nothing: it goes on waiting. OK: it is charged.
std::optional<absl::Status> Lending::AnswerOf(const Waiting& waiting,
                                              absl::Time now) {
  const RoomWait& wait = waiting.wait;
  absl::Status taken = ledger_.Take(wait.job, tier_, wait.bytes);
  if (taken.ok()) return taken;
  absl::Status own = ledger_.CheckQuotas(wait.job, tier_, wait.bytes);
  if (!own.ok()) return own;
  const int64_t share = ShareOf(waiting);
  if (wait.bytes > share) return BeyondShare(taken, share);
  // Who is asked first answers once it has been asked.
  Ask(now);
  const bool may_come =
      now < wait.deadline && (IsAnyAsked() || !kept_().empty());
  if (may_come) return std::nullopt;
  return absl::ResourceExhaustedError(
      absl::StrCat(absl::string_view(taken.message()),
                   "; others could not lend it in time", Said()));
}

void Lending::Answer(const Waiting& waiting, absl::Status answer) {
  const RoomWait& wait = waiting.wait;
  const bool is_charged = answer.ok();
  const bool is_heard = waits_.Answer(waiting.number, std::move(answer));
  if (!is_charged) return;
  const auto begins = lenders_.find(wait.session);
  const bool has_gone = wait.session >= 0 && begins == lenders_.end();
  if (!is_heard || has_gone) return ledger_.Give(wait.job, tier_, wait.bytes);
  if (wait.session < 0) return;
  begins->second.lent = 0;
  begins->second.has_begun = true;
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
  const std::vector<int64_t> shares = ledger_.SharesOf(tier_, Claims());
  size_t i = 0;
  for (auto& [session, each] : lenders_) {
    const int64_t beyond = std::max(int64_t{0}, each.bytes - shares[i++]);
    if (each.has_begun) Ask(each, beyond, patience);
  }
}

// `bytes`: that it would lend by its share.
void Lending::Ask(Lender& lender, int64_t bytes, absl::Duration patience) {
  const int64_t lends = lender.is_asked ? lender.asked_bytes : lender.lent;
  if (waiting_.empty()) {
    bytes = std::min(bytes, lender.lent);
    if (bytes < lender.lent) bytes = TakeBack(lender, bytes);
  } else {
    bytes = std::max(bytes, lender.lent);
    if (lender.is_spent) return;
  }
  if (bytes == lends) return;
  lender.is_asked = true;
  lender.is_spent = false;
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
