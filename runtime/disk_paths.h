// The disk paths of one runtime: their space, which grows and goes in the
// background, and their files' names. What is stored there is the mover's.
// Mover only, one thread at a time; nothing here blocks.
//
// What killed jobs left on the paths goes from the beginning, piece by piece.
//
// A file that must grow is asked on the path's background executor; the
// answer comes through the inbox (Grown). A disk that does not answer
// in time is late: nothing more is asked of it until it does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/clock.h"
#include "runtime/base/executor.h"
#include "runtime/base/watch.h"
#include "runtime/messages/inbox.h"
#include "tiers/disk/disk_file.h"
#include "tiers/extent.h"

namespace terrace {

class DiskPaths {
 public:
  // Path k has disks[k], and its background is background[k], which outlives
  // this; `patience` is how long a growing disk may seem to stand still.
  DiskPaths(std::vector<std::unique_ptr<DiskFile>> disks,
            std::vector<Executor*> background, absl::Duration patience,
            Clock& clock, std::shared_ptr<Inbox> inbox);

  int count() const { return static_cast<int>(paths_.size()); }
  const std::string& name(int path) const { return info(path).file; }
  const DiskFileInfo& info(int path) const { return at(path).disk->info(); }
  uint64_t id(int path) const { return at(path).id; }  // random
  int64_t capacity_bytes(int path) const {
    return at(path).disk->capacity_bytes();
  }
  int64_t used_bytes(int path) const { return at(path).disk->used_bytes(); }
  bool late(int path) const { return at(path).late; }

  // Room for an extent; nullopt: its file grows, ask again after the answer.
  // An error of the path: it has no room and cannot grow by that much. For
  // what may as well be stored elsewhere (`must` is false), a disk that could
  // not grow is not asked again until ForgetRefusals.
  absl::StatusOr<std::optional<Extent>> Allocate(int path, int64_t size_bytes,
                                                 bool must);
  void Free(int path, Extent extent) { at(path).disk->Free(extent); }
  void ForgetRefusals();

  // DeadlineExceeded, once, for a growing disk that has become late.
  absl::Status CheckGrowth(int path, absl::Time now);
  // When CheckGrowth may have something to say.
  absl::Time NextDeadline() const;
  struct Answer {
    absl::Status status;
    bool late = false;  // whoever had asked has gone on
    bool must = false;  // as that one asked
  };
  Answer OnGrown(const Grown& message);

  // A piece is gone of what killed jobs left on a path: the next one's turn
  // is behind a file that wants to grow meanwhile.
  void OnReclaimed(const Reclaimed& message);

  // Removes all files; Removed events tell of it.
  void StartRemovals();
  bool removals_started() const { return removing_; }
  void OnRemoved(const Removed& message);
  std::vector<std::string> unremoved() const;  // names
  const absl::Status& removal_status() const { return removal_status_; }
  // For transfers that never ended: their descriptors, whose numbers must not
  // become another file's, stay for ever.
  void LeaveBehind();

 private:
  struct Path {
    // Shared with the background's tasks: one that hangs outlives this.
    std::shared_ptr<DiskFile> disk;
    Executor* background = nullptr;
    uint64_t id = 0;
    bool growing = false;
    bool late = false;  // growing, past its deadline
    bool must_grow = false;
    bool refused_growth = false;
    bool removing = false;
    int64_t growth_bytes = 0;
    absl::Time since;      // when it was asked, or was last seen to get on
    int64_t progress = 0;  // then
    Watch watch;           // by CheckGrowth: when nobody looked, none is late
  };

  const Path& at(int path) const { return paths_[static_cast<size_t>(path)]; }
  Path& at(int path) { return paths_[static_cast<size_t>(path)]; }
  void StartGrowth(int path, const Growth& growth, bool must);
  void StartReclaim(int path);

  std::vector<Path> paths_;
  const absl::Duration patience_;
  Clock& clock_;
  const std::shared_ptr<Inbox> inbox_;
  bool removing_ = false;
  absl::Status removal_status_;  // the first error
};

}  // namespace terrace
