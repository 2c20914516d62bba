// The end of a runtime: who still holds what, what is waited for, and what
// is left behind on purpose.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/io_fault.h"
#include "runtime/mover.h"

namespace terrace {
namespace {

// How many pins a message names.
constexpr size_t kNamedPins = 8;

}  // namespace

void Mover::Handle(CloseRequest& message) {
  if (!closing_) BeginClose();
  closes_.push_back(std::move(message));
}

// From here on nothing starts; what is pinned stays as it is.
void Mover::BeginClose() {
  closing_ = true;
  for (Queue* queue : open_queues_) {
    DropWaiting(*queue);
    EndUntaken(queue->ready);
    queue->port->Close();
  }
  for (PendingOpen& open : opens_) open.message.reply->Set(Closed());
  opens_.clear();
  for (const PendingRegister& pending : registers_) {
    pending.message.reply->Set(Closed());
  }
  registers_.clear();
  for (const PendingUnregister& pending : unregisters_) {
    if (pending.message.reply != nullptr) pending.message.reply->Set(Closed());
  }
  unregisters_.clear();
  for (const auto& [tag, transfer] : transfers_) {
    io_->Cancel(transfer.path, tag);
  }
  // The pins that nobody took end by messages: holders are known after them.
  close_after_ = inbox_->posted();
}

void Mover::FinishClose(absl::Time now) {
  if (closes_.empty() || processed_ < close_after_) return;
  const std::string holders = Holders();
  absl::Time deadline = absl::InfiniteFuture();
  std::erase_if(closes_, [&](CloseRequest& close) {
    const bool refused = !holders.empty() && !close.force;
    if (refused) {
      close.reply->Set(
          absl::FailedPreconditionError(absl::StrCat("still held: ", holders)));
    } else {
      deadline = std::min(deadline, close.deadline);
    }
    return refused;
  });
  if (closes_.empty()) return;
  // Beside the transfers that still end: a disk that hangs in one of them may
  // yet let go of the names.
  if (!paths_.removals_started()) paths_.StartRemovals();
  const bool quiet = io_->pending() == 0 && hashing_ == 0;
  const bool removed = paths_.unremoved().empty();
  if ((quiet && removed) || now >= deadline) End(quiet);
}

void Mover::Handle(Removed& message) { paths_.OnRemoved(message); }

void Mover::End(bool quiet) {
  std::vector<std::string> late;
  if (!quiet) {
    late.push_back(absl::StrCat(io_->pending(), " transfers and ", hashing_,
                                " tasks never ended; the arena of ",
                                arena_.size(), " bytes is leaked"));
  }
  for (const std::string& name : paths_.unremoved()) {
    late.push_back(absl::StrCat(name, " could not be removed in time"));
  }
  absl::Status status = late.empty()
                            ? paths_.removal_status()
                            : absl::DeadlineExceededError(absl::StrCat(
                                  "closing: ", absl::StrJoin(late, "; ")));
  // Whoever still holds a pin may go on using its bytes.
  abandoned_ = !quiet || !pins_.empty();
  closed_ = true;
  final_stats_ = MakeStats();
  if (abandoned_) final_stats_.leaked_bytes = space_.capacity_bytes();
  // Before the engine is left behind: a message would wake it.
  std::deque<Message> left = inbox_->Shut();
  // What a transfer that never ended may still use: the engine, its buffers,
  // and the files' descriptors.
  if (!quiet) {
    io_->Abandon();
    paths_.LeaveBehind();
  }
  for (Message& message : left) {
    Request* const request = std::get_if<Request>(&message);
    if (request == nullptr) continue;  // whoever waited for it is told below
    if (auto* asked = std::get_if<StatsRequest>(request)) {
      asked->reply->Set(final_stats_);
    } else if (auto* close = std::get_if<CloseRequest>(request)) {
      close->reply->Set(status);
    } else {
      std::visit(
          [](auto& body) {
            if constexpr (requires { body.reply->Set(Closed()); }) {
              body.reply->Set(Closed());
            }
          },
          *request);
    }
  }
  // No reference to what the last one is told stays behind here.
  for (size_t i = 0; i < closes_.size(); ++i) {
    const bool last = i + 1 == closes_.size();
    closes_[i].reply->Set(last ? std::move(status) : status);
  }
}

absl::Status Mover::Closed() {
  return absl::CancelledError("the runtime was closed");
}

std::string Mover::Holders() const {
  std::vector<std::string> names;
  if (!open_queues_.empty()) {
    names.push_back(absl::StrCat(open_queues_.size(), " queues"));
  }
  size_t named = 0;
  for (const auto& [token, pin] : pins_) {
    if (named++ == kNamedPins) {
      names.push_back(absl::StrCat("and more, ", pins_.size(), " pins"));
      break;
    }
    names.push_back(absl::StrCat("'", pin.entry->spec.name, "'"));
  }
  return absl::StrJoin(names, ", ");
}

// Whose failed write-back, as an error, keeps a closed queue's window, or room
// outside all.
absl::Status Mover::Unwritten() const {
  for (const TensorEntry* entry : failed_writes_) {
    if (entry->write_error.ok()) continue;  // its copy was dropped since
    if (entry->window != kNoWindow && !windows_[entry->window].closing) {
      continue;
    }
    return Reworded(
        entry->write_error,
        absl::StrCat("; not written back: '", entry->spec.name,
                     "': ", absl::string_view(entry->write_error.message())));
  }
  return absl::OkStatus();
}

}  // namespace terrace
