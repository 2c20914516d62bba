#include "daemon/server/tensor_listings.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace terrace {

void TensorListings::Add(const Question& question, absl::Time now) {
  waiting_.push_back({question, question.request.session, now + kPatience});
}

void TensorListings::Forget(int fd) {
  std::erase_if(waiting_,
                [fd](const Waiting& each) { return each.question.fd == fd; });
}

bool TensorListings::IsAsked(int64_t session) const {
  return absl::c_any_of(waiting_, [session](const Waiting& each) {
    return each.is_asked && each.session == session;
  });
}

std::vector<TensorListings::Answer> TensorListings::Take(absl::Time now) {
  std::vector<Answer> answers;
  // Whoever is answered leaves its runtime to the next one, which asks it then.
  for (size_t before = SIZE_MAX; before > waiting_.size();) {
    before = waiting_.size();
    for (size_t i = 0; i < waiting_.size();) {
      std::optional<TensorsPage> page = Serve(waiting_[i], now);
      if (!page.has_value()) {
        ++i;
        continue;
      }
      const Question& asked = waiting_[i].question;
      answers.push_back({asked.fd, asked.sequence, *std::move(page)});
      waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  return answers;
}

std::optional<TensorsPage> TensorListings::Serve(Waiting& waiting,
                                                 absl::Time now) {
  const std::optional<uid_t> owner = waiting.question.owner;
  const int64_t after = waiting.question.request.after;
  if (!waiting.is_asked) {
    const auto found = jobs_.NextSession(waiting.session, owner);
    if (!found.has_value()) return TensorsPage();
    waiting.session = *found;
    if (IsAsked(*found)) {
      if (now < waiting.deadline) return std::nullopt;
    } else {
      waiting.is_asked = true;
      // Behind one of another session nothing is left out.
      const bool is_same = *found == waiting.question.request.session;
      jobs_.RuntimeOf(*found)->AskPage({is_same ? after : -1});
      waiting.question.request = {*found, is_same ? after : -1};
    }
  }
  const JobTable::Whose whose = jobs_.WhoseIs(waiting.session);
  TensorsPage page;
  page.uid = whose.name.uid;
  page.job = whose.name.job;
  page.process = whose.process;
  AskedRuntime* const runtime = jobs_.RuntimeOf(waiting.session);
  const std::unique_ptr<TensorPage> told =
      runtime == nullptr ? nullptr : runtime->TakePage();
  const bool is_it =
      told != nullptr && told->after.value == waiting.question.request.after;
  if (is_it) {
    page.tensors = std::move(told->tensors);
    if (!told->is_last && !page.tensors.empty()) {
      page.next_session = waiting.session;
      page.next_after = page.tensors.back().id.value;
      return page;
    }
  } else if (whose.process != 0 && now < waiting.deadline) {
    return std::nullopt;
  } else {
    page.fault = whose.process == 0
                     ? "a process that has gone meanwhile"
                     : absl::StrCat("the runtime of process ", whose.process,
                                    " does not answer");
  }
  page.next_session =
      jobs_.NextSession(waiting.session + 1, owner).value_or(-1);
  return page;
}

absl::Time TensorListings::next() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Waiting& each : waiting_) next = std::min(next, each.deadline);
  return next;
}

}  // namespace terrace
