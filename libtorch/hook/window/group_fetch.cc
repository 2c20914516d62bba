#include "libtorch/hook/window/group_fetch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "libtorch/hook/window/fingerprint.h"
#include "terrace/machine.h"

namespace terrace {

absl::Status GroupFetch::Bring(Tensors tensors) {
  while (!tensors.empty()) {
    Tensors others;
    const Tensors mine = TakeMine(tensors, &others);
    if (!mine.empty()) LoadAll(mine);
    if (!others.empty()) Await(others);
    tensors = std::move(others);
  }
  return status_;
}

GroupFetch::Tensors GroupFetch::TakeMine(const Tensors& tensors,
                                         Tensors* others) {
  Tensors mine;
  for (WindowTensor* const each : tensors) {
    Residency state = each->word().AwaitEviction();
    while ((state == Residency::kCold || state == Residency::kReady) &&
           !each->word().BeginLoad()) {
      state = each->word().AwaitEviction();
    }
    switch (state) {
      case Residency::kCold:
      case Residency::kReady:
        mine.push_back(each);
        break;
      case Residency::kLoading:
        others->push_back(each);
        break;
      case Residency::kFailed:
        status_.Update(pins_.meter().FailedBefore(*each));
        break;
      case Residency::kResident:
        in_use_.push_back(each);
        break;
      case Residency::kEvicting:
        TERRACE_CHECK(false);  // that is what was waited for
        break;
    }
  }
  return mine;
}

void GroupFetch::LoadAll(const Tensors& mine) {
  // The cause of a fetch that failed ahead of need may be mended by now.
  const bool is_again = mine.size() > 1 || mine.front()->is_ahead_;
  const absl::Status status = Load(mine);
  if (status.ok()) return;
  const bool ends = !is_again || IsNoRoom(status) || absl::IsCancelled(status);
  for (WindowTensor* const each : mine) {
    const absl::Status one = ends ? status : Load({each});
    if (!one.ok()) Fail(*each, one);
  }
}

absl::Status GroupFetch::Load(const Tensors& mine) {
  absl::InlinedVector<bool, 6> ahead;
  for (const WindowTensor* const each : mine) ahead.push_back(each->is_ahead_);
  pins_.Claim(mine);
  const absl::Time begun = absl::Now();
  absl::StatusOr<WindowPins::Brought> brought =
      pins_.Take(mine, Access::kUpdate,
                 {asker_.caller, asker_.operation, asker_.operation_bytes,
                  absl::MakeConstSpan(in_use_)},
                 deadline_);
  if (!brought.ok()) {
    for (const WindowTensor* const each : mine) {
      pins_.GiveRoom(*each);
    }
    return brought.status();
  }
  for (size_t i = 0; i < mine.size(); ++i) {
    Place(*mine[i], std::move(brought->pins[i]), ahead[i]);
  }
  if (asker_.caller == FetchAsker::Caller::kBeside) return absl::OkStatus();
  const bool on_room = brought->cause == WaitCause::kSpace ||
                       brought->cause == WaitCause::kWriteBack;
  if (on_room) pins_.meter().NoteBlockedOnRoom(absl::Now() - begun);
  pins_.room().NotePeak(
      [this] { return pins_.order().PinnedBytesWith(nullptr); });
  return absl::OkStatus();
}

void GroupFetch::Place(WindowTensor& tensor, Pin pin, bool was_ahead) {
  if (checks_ && !tensor.never_clean_) {
    tensor.fingerprint_ = Fingerprint(pin.data());
    tensor.is_checked_ = true;
  }
  const absl::Status installed = pins_.Install(tensor, std::move(pin));
  if (!installed.ok()) {
    pins_.GiveRoom(tensor);
    tensor.word().End(Residency::kCold);
    status_.Update(installed);
    return;
  }
  if (asker_.caller != FetchAsker::Caller::kBeside) {
    pins_.meter().NoteFetched(tensor, was_ahead);
  }
  in_use_.push_back(&tensor);
  tensor.word().End(Residency::kResident);
}

void GroupFetch::Fail(WindowTensor& tensor, const absl::Status& why) {
  const bool is_operation = asker_.caller == FetchAsker::Caller::kOperation;
  const bool no_room = IsNoRoom(why);
  const std::string text =
      is_operation && no_room ? TooMuch() : std::string(why.message());
  const absl::Status status = Reworded(why, tensor.Told(text));
  // An operation that goes on finds this where it looks at the tensor.
  if (is_operation) tensor.Refuse(std::string(status.message()));
  if (is_operation || !absl::IsResourceExhausted(status)) {
    pins_.meter().NoteFailure(status);
  }
  // Whoever is told of no room may come again when there is some.
  tensor.word().End(is_operation && !no_room ? Residency::kFailed
                                             : Residency::kCold);
  status_.Update(status);
}

std::string GroupFetch::TooMuch() const {
  return absl::StrCat(
      asker_.operation, " takes ", FormatBytes(asker_.operation_bytes),
      " at a time, the budget is ", FormatBytes(pins_.room().most_bytes()),
      ", and of memory beside it ",
      FormatBytes(std::min(pins_.beyond_bytes(), AvailableMemoryBytes())),
      " are available");
}

void GroupFetch::Await(const Tensors& others) {
  for (const WindowTensor* const each : in_use_)
    pins_.queue().BeginWaiting(*each);
  for (const WindowTensor* const each : others) {
    static_cast<void>(each->word().Await());
  }
  for (const WindowTensor* const each : in_use_)
    pins_.queue().EndWaiting(*each);
}

}  // namespace terrace
