// Several paths: how fast each is, and where the next write-back goes.
//
// A write-back rewrites its whole extent, so it may go to an extent of another
// path, its target. Until it is whole the home stays the tensor's, then the
// target is its home and the old one is free: a tensor always has room below
// it, and the only good copy, that in the arena, is given up by neither.
#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/mover.h"
#include "terrace/runtime.h"

namespace terrace {

// Called when transfers have ended: what moved since the last such call.
void Mover::MeasurePaths() {
  for (int i = 0; i < paths_.count(); ++i) {
    PathMeter& meter = meters_[static_cast<size_t>(i)];
    if (meter.reads + meter.writes == 0) continue;
    const IoPathStats now = io_->stats(i);
    if (meter.reads > 0) {
      placement_.read_rate(i).Add(
          meter.reads, now.bytes_read - meter.last.bytes_read,
          absl::ToDoubleSeconds(now.read_busy - meter.last.read_busy));
      meter.last.bytes_read = now.bytes_read;
      meter.last.read_busy = now.read_busy;
    }
    if (meter.writes > 0) {
      placement_.write_rate(i).Add(
          meter.writes, now.bytes_written - meter.last.bytes_written,
          absl::ToDoubleSeconds(now.write_busy - meter.last.write_busy));
      meter.last.bytes_written = now.bytes_written;
      meter.last.write_busy = now.write_busy;
    }
    meter.reads = meter.writes = 0;
  }
}

// A device that answers nothing has no rate yet that would say so.
void Mover::NoteUnanswered(int64_t size_bytes) {
  for (int i = 0; i < paths_.count(); ++i) {
    const PathMeter& meter = meters_[static_cast<size_t>(i)];
    const IoPathStats now = io_->stats(i);
    placement_.read_rate(i).SetUnanswered(
        absl::ToDoubleSeconds(now.read_busy - meter.last.read_busy),
        size_bytes);
    placement_.write_rate(i).SetUnanswered(
        absl::ToDoubleSeconds(now.write_busy - meter.last.write_busy),
        size_bytes);
  }
}

// kWait: a file grows that may take it, or another write finds out whether a
// path does. Where none can be trusted all are asked that did not refuse it
// yet, home first: one of them may do better by now.
Mover::Room Mover::ChooseTarget(TensorEntry& entry) {
  TERRACE_CHECK(entry.target_path < 0);
  const int64_t bytes = ResidentBytes(entry.spec.size_bytes);
  const auto refused = [&entry](int path) {
    return std::find(entry.refused_by.begin(), entry.refused_by.end(), path) !=
           entry.refused_by.end();
  };
  std::vector<bool> usable(static_cast<size_t>(paths_.count()));
  for (int i = 0; i < paths_.count(); ++i) {
    usable[i] = !refused(i) && (i == entry.path || !paths_.late(i));
  }
  if (paths_.count() > 1) NoteUnanswered(bytes);
  bool waits = false;
  while (true) {
    int chosen = placement_.ChooseTarget(entry.path, usable, bytes);
    if (chosen < 0 && (waits || placement_.trying())) return Room::kWait;
    if (chosen < 0 && usable[entry.path]) chosen = entry.path;
    if (chosen < 0) {
      const auto any = std::find(usable.begin(), usable.end(), true);
      if (any == usable.end()) return Room::kNone;
      chosen = static_cast<int>(any - usable.begin());
    }
    Extent target = entry.home;
    if (chosen != entry.path) {
      const absl::StatusOr<std::optional<Extent>> room =
          paths_.Allocate(chosen, bytes, /*must=*/false);
      if (!room.ok() || !room->has_value()) {
        waits |= room.ok();
        usable[chosen] = false;
        continue;
      }
      target = **room;
    }
    entry.target_path = chosen;
    entry.target = target;
    placement_.OnPlaced(chosen, bytes);
    return Room::kFound;
  }
}

// The write-back is whole: what it went to is the home.
void Mover::AdoptTarget(TensorEntry& entry) {
  if (entry.moves()) {
    ++meters_[static_cast<size_t>(entry.target_path)].moves;
    paths_.Free(std::exchange(entry.path, entry.target_path),
                std::exchange(entry.home, entry.target));
  }
  entry.target_path = -1;
}

void Mover::DropTarget(TensorEntry& entry) {
  if (entry.moves()) paths_.Free(entry.target_path, entry.target);
  if (entry.target_path >= 0) placement_.OnGivenUp(entry.target_path);
  entry.target_path = -1;
}

// The tensor stays in the arena, dirty. Where another path takes it nobody is
// the worse, and only the path's own report says so.
void Mover::WriteFailed(TensorEntry& entry, int path,
                        const absl::Status& status) {
  meters_[static_cast<size_t>(path)].write_error = status;
  entry.refusal = status;
  entry.refused_by.push_back(path);
  // While it is late its bytes are not to be touched.
  if (entry.quarantined ||
      static_cast<int>(entry.refused_by.size()) >= paths_.count()) {
    GiveUpWrite(entry);
    return;
  }
  Report(/*queue=*/-1, status);
  entry.write_error = absl::OkStatus();
  dirty_.push_back(&entry);
}

// The step that asked for it hears of it, or the queue's next one, if the
// tensor is not written by then; it is tried again at the next BeginStep or
// OpenQueue.
void Mover::GiveUpWrite(TensorEntry& entry) {
  SetLeaving(entry, false);
  entry.refused_by.clear();
  entry.write_error = entry.refusal;
  const Queue* const queue = FindQueue(entry.queue);
  const bool between_steps = queue != nullptr && !queue->step_open;
  entry.unsaid_to = between_steps ? entry.queue : -1;
  failed_writes_.push_back(&entry);
  Report(entry.queue, entry.write_error);
}

// The first error of a write-back that failed since the queue's last step and
// was not tried again since.
absl::Status Mover::TakeUnsaid(int64_t queue) {
  absl::Status first;
  for (TensorEntry* entry : failed_writes_) {
    if (entry->unsaid_to != queue) continue;
    entry->unsaid_to = -1;
    first.Update(entry->write_error);
  }
  return first;
}

void Mover::RetryFailedWrites() {
  std::vector<bool> hold(static_cast<size_t>(paths_.count()));
  for (int i = 0; i < paths_.count(); ++i) {
    hold[i] = paths_.late(i) || io_->stats(i).quarantined_bytes > 0;
  }
  placement_.TryAgain(hold);
  // For balance alone a full disk is not asked over and over.
  if (!failed_writes_.empty()) paths_.ForgetRefusals();
  for (TensorEntry* entry : std::exchange(failed_writes_, {})) {
    if (entry->write_error.ok()) continue;  // its copy was dropped since
    if (entry->quarantined) {
      failed_writes_.push_back(entry);
      continue;
    }
    entry->write_error = absl::OkStatus();
    if (entry->window != kNoWindow) dirty_.push_back(entry);
  }
}

// A disk that does not answer in time is degraded, and who waits for it tries
// the next one. Its answer may still come.
void Mover::CheckGrowth(absl::Time now) {
  for (int path = 0; path < paths_.count(); ++path) {
    const absl::Status status = paths_.CheckGrowth(path, now);
    if (status.ok()) continue;
    meters_[static_cast<size_t>(path)].write_error = status;
    Report(/*queue=*/-1, status);
    for (PendingRegister& pending : registers_) {
      if (pending.path == path) RefuseHome(pending, status);
    }
  }
}

void Mover::Handle(Grown& message) {
  const DiskPaths::Answer answer = paths_.OnGrown(message);
  // Who had asked has gone on, or looks elsewhere.
  if (answer.status.ok() || answer.late || !answer.must) return;
  // It was the first one's need; the others' may be less.
  for (PendingRegister& pending : registers_) {
    if (pending.path != message.path) continue;
    RefuseHome(pending, answer.status);
    return;
  }
}

void Mover::Handle(Reclaimed& message) { paths_.OnReclaimed(message); }

}  // namespace terrace
