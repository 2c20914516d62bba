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
    // Each that others bring is in use from when it comes, while this thread
    // waits for the rest.
    for (const WindowTensor* const each : others) {
      pins_.queue().BeginWaiting(*each);
    }
    if (!mine.empty()) LoadAll(mine);
    if (!others.empty()) Await(others);
    for (const WindowTensor* const each : others) {
      pins_.queue().EndWaiting(*each);
    }
    tensors = std::move(others);
  }
  return status_;
}

GroupFetch::Tensors GroupFetch::TakeMine(const Tensors& tensors,
                                         Tensors* others) {
  Tensors mine;
  for (WindowTensor* const each : tensors) {
    Residency state = each->word().AwaitEviction();
    while (state == Residency::kCold && !each->word().BeginLoad()) {
      state = each->word().AwaitEviction();
    }
    switch (state) {
      case Residency::kCold:
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
  const absl::Status status = Load(mine);
  if (status.ok()) return;
  // A read that was begun ahead of need may have failed by what is mended now,
  // so that one tensor is tried once more too.
  const bool ends = IsNoRoom(status) || absl::IsCancelled(status);
  for (WindowTensor* const each : mine) {
    const absl::Status one = ends ? status : Load({each});
    if (one.ok()) continue;
    // Where a second try has no time or no room, the first one says why.
    Fail(*each, mine.size() == 1 && IsNoRoom(one) ? status : one);
  }
}

absl::Status GroupFetch::Load(const Tensors& mine) {
  const absl::Time begun = absl::Now();
  absl::StatusOr<WindowPins::Brought> brought =
      pins_.Take(mine, Access::kUpdate,
                 {asker_.caller, asker_.operation, asker_.operation_bytes,
                  absl::MakeConstSpan(in_use_)},
                 deadline_);
  if (!brought.ok()) return brought.status();
  const size_t before = in_use_.size();
  for (size_t i = 0; i < mine.size(); ++i) {
    Place(*mine[i], std::move(brought->pins[i]));
  }
  if (asker_.caller == FetchAsker::Caller::kBeside) return absl::OkStatus();
  const auto placed = static_cast<int64_t>(in_use_.size() - before);
  pins_.meter().NoteAhead(std::min(brought->ahead, placed));
  const bool on_room = brought->cause == WaitCause::kSpace ||
                       brought->cause == WaitCause::kWriteBack;
  if (on_room) pins_.meter().NoteBlockedOnRoom(absl::Now() - begun);
  pins_.room().NotePeak([this] { return pins_.queue().BytesInUse(); });
  return absl::OkStatus();
}

void GroupFetch::Place(WindowTensor& tensor, Pin pin) {
  if (checks_ && !tensor.never_clean_) {
    tensor.fingerprint_ = Fingerprint(pin.data());
    tensor.is_checked_ = true;
  }
  const absl::Status installed = pins_.Install(tensor, std::move(pin));
  if (!installed.ok()) {
    tensor.word().End(Residency::kCold);
    status_.Update(installed);
    return;
  }
  if (asker_.caller != FetchAsker::Caller::kBeside) {
    pins_.meter().NoteFetched(tensor);
  }
  in_use_.push_back(&tensor);
  tensor.word().End(Residency::kResident);
}

void GroupFetch::Fail(WindowTensor& tensor, const absl::Status& why) {
  const bool is_operation = asker_.caller == FetchAsker::Caller::kOperation;
  const bool no_room = IsNoRoom(why);
  const std::string text =
      is_operation && no_room ? TooMuch(why) : std::string(why.message());
  const absl::Status status = Reworded(why, tensor.Told(text));
  // An operation that goes on finds this where it looks at the tensor.
  if (is_operation) tensor.Refuse(std::string(status.message()));
  if (is_operation || !absl::IsResourceExhausted(status)) {
    pins_.meter().NoteFailure(status);
  }
  // Whoever is told of no room may come again when there is some.
  const bool stays = is_operation && !no_room;
  if (stays) pins_.NoteFailed(tensor);
  tensor.word().End(stays ? Residency::kFailed : Residency::kCold);
  status_.Update(status);
}

std::string GroupFetch::TooMuch(const absl::Status& why) const {
  return absl::StrCat(
      asker_.operation, " takes ", FormatBytes(asker_.operation_bytes),
      " at a time, the budget is ", FormatBytes(pins_.room().most_bytes()),
      ", and of memory beside it ",
      FormatBytes(std::min(pins_.beyond_bytes(), AvailableMemoryBytes())),
      " are available: ", absl::string_view(why.message()));
}

void GroupFetch::Await(const Tensors& others) {
  for (const WindowTensor* const each : in_use_) {
    pins_.queue().BeginWaiting(*each);
  }
  for (const WindowTensor* const each : others) {
    static_cast<void>(each->word().Await());
  }
  for (const WindowTensor* const each : in_use_) {
    pins_.queue().EndWaiting(*each);
  }
}

}  // namespace terrace
