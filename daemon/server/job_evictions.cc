#include "daemon/server/job_evictions.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace terrace {
namespace {

constexpr size_t kShownBytes = 255;  // of a name that may be any

std::string JobOf(const EvictionRequest& request) {
  if (request.job.empty()) return "a job without a name";
  return absl::StrCat("the job '",
                      absl::CEscape(request.job.substr(0, kShownBytes)), "'");
}

absl::Status Check(const JobEvictions::Question& question) {
  const EvictionRequest& request = question.request;
  const int64_t most = absl::ToInt64Milliseconds(JobEvictions::kMostTime);
  if (request.timeout_ms < 0 || request.timeout_ms > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an eviction within ", request.timeout_ms, " ms: it has 0 to ", most));
  }
  const bool is_own = !question.owner.has_value() || request.uid < 0 ||
                      request.uid == int64_t{*question.owner};
  if (is_own) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "what another user's job has in memory is evicted by that user, by root, "
      "by the daemon's own user and by its operators");
}

}  // namespace

absl::Status JobEvictions::Add(const Question& question, absl::Time now) {
  const EvictionRequest& request = question.request;
  absl::Status checked = Check(question);
  if (!checked.ok()) return checked;
  Waiting waiting{.fd = question.fd,
                  .sequence = question.sequence,
                  .until = now + absl::Milliseconds(request.timeout_ms),
                  .report = {.job = request.job}};
  std::set<uid_t> users;
  for (auto number = jobs_.NextSession(0, question.owner); number.has_value();
       number = jobs_.NextSession(*number + 1, question.owner)) {
    const JobTable::Whose whose = jobs_.WhoseIs(*number);
    const bool is_it =
        whose.name.job == request.job &&
        (request.uid < 0 || int64_t{whose.name.uid} == request.uid) &&
        (request.process == 0 || whose.process == request.process);
    if (!is_it) continue;
    users.insert(whose.name.uid);
    waiting.report.uid = whose.name.uid;
    waiting.report.processes.push_back({.process = whose.process});
    waiting.parts.push_back({.session = *number});
    ++waiting.left;
  }
  if (users.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("several users have ", JobOf(request), ": name one of ",
                     absl::StrJoin(users, ", ")));
  }
  if (users.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no process of ", JobOf(request),
                     request.process == 0
                         ? std::string()
                         : absl::StrCat(" with the number ", request.process),
                     " is here"));
  }
  waiting_.push_back(std::move(waiting));
  return absl::OkStatus();
}

void JobEvictions::Forget(int fd) {
  std::erase_if(waiting_, [&](Waiting& each) {
    if (each.fd != fd) return false;
    for (Part& part : each.parts) End(part);
    return true;
  });
}

void JobEvictions::End(Part& part) {
  const bool was_told = !part.is_over && part.ticket != 0;
  if (was_told) told_.erase(part.session);
  part.is_over = true;
}

std::vector<JobEvictions::Answer> JobEvictions::Take(absl::Time now) {
  std::vector<Answer> answers;
  // Whose runtime is over with one is told for the next.
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (size_t i = 0; i < waiting_.size();) {
      Waiting& each = waiting_[i];
      const int64_t before = each.left;
      Serve(each, now);
      goes_on |= each.left != before;
      if (each.left > 0) {
        ++i;
        continue;
      }
      answers.push_back({each.fd, each.sequence, std::move(each.report)});
      waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  return answers;
}

void JobEvictions::Serve(Waiting& waiting, absl::Time now) {
  for (size_t i = 0; i < waiting.parts.size(); ++i) {
    Part& part = waiting.parts[i];
    if (part.is_over) continue;
    const bool is_over =
        Serve(waiting.until, now, part, waiting.report.processes[i]);
    if (!is_over) continue;
    End(part);
    --waiting.left;
  }
}

bool JobEvictions::Serve(absl::Time until, absl::Time now, Part& part,
                         EvictionReport::Process& process) {
  AskedRuntime* const runtime = jobs_.RuntimeOf(part.session);
  if (runtime == nullptr) {
    process.fault = "it has gone meanwhile";
    return true;
  }
  if (part.ticket == 0 && told_.insert(part.session).second) {
    part.ticket = ++tickets_;
    const absl::Duration left = std::max(absl::ZeroDuration(), until - now);
    runtime->Evict({part.ticket, left});
  }
  if (part.ticket != 0) {
    const std::unique_ptr<Evicted> evicted = runtime->TakeEvicted();
    if (evicted != nullptr && evicted->ticket == part.ticket) {
      process.evicted = *evicted;
      return true;
    }
  }
  if (now < until + kPatience) return false;
  process.fault = part.ticket == 0
                      ? "what somebody else has it evict is not done yet"
                      : "its runtime does not answer";
  return true;
}

absl::Time JobEvictions::next() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Waiting& each : waiting_) {
    next = std::min(next, each.until + kPatience);
  }
  return next;
}

}  // namespace terrace
