#include "runtime/disk_paths.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/io_fault.h"

// Of the leak sanitiser, null without it.
extern "C" void __lsan_ignore_object(const void* object) __attribute__((weak));

namespace terrace {

DiskPaths::DiskPaths(std::vector<std::unique_ptr<DiskFile>> disks,
                     std::vector<Executor*> background, absl::Duration patience,
                     Clock& clock, std::shared_ptr<Inbox> inbox)
    : paths_(disks.size()),
      patience_(patience),
      clock_(clock),
      inbox_(std::move(inbox)) {
  TERRACE_CHECK(background.size() == disks.size());
  std::random_device random;
  for (size_t i = 0; i < disks.size(); ++i) {
    paths_[i].disk = std::move(disks[i]);
    paths_[i].background = background[i];
    paths_[i].id = (uint64_t{random()} << 32) | random();
    if (paths_[i].disk->reclaims()) StartReclaim(static_cast<int>(i));
  }
}

absl::StatusOr<std::optional<Extent>> DiskPaths::Allocate(int path,
                                                          int64_t size_bytes,
                                                          bool must) {
  Path& asked = at(path);
  // Who waits for it comes first when it has grown.
  if (asked.growing) return std::optional<Extent>();
  absl::StatusOr<Extent> extent = asked.disk->Allocate(size_bytes);
  if (extent.ok()) return std::optional<Extent>(*extent);
  if (!must && asked.refused_growth) return extent.status();
  absl::StatusOr<Growth> growth = asked.disk->GrowthFor(size_bytes);
  if (!growth.ok()) return growth.status();
  StartGrowth(path, *growth, must);
  return std::optional<Extent>();
}

void DiskPaths::StartGrowth(int path, const Growth& growth, bool must) {
  Path& grows = at(path);
  grows.growing = true;
  grows.late = false;
  grows.must_grow = must;
  grows.growth_bytes = growth.bytes;
  grows.since = clock_.Now();
  grows.watch.Expect(patience_);
  grows.watch.Begin(grows.since);
  grows.progress = grows.disk->growth_progress();
  grows.background->Run([disk = grows.disk, inbox = inbox_, path, growth] {
    inbox->Post(Grown{path, disk->Grow(growth)});
  });
}

void DiskPaths::ForgetRefusals() {
  for (Path& path : paths_) path.refused_growth = false;
}

absl::Status DiskPaths::CheckGrowth(int path, absl::Time now) {
  Path& grows = at(path);
  if (!grows.growing || grows.late) return absl::OkStatus();
  grows.watch.Look(now);
  grows.since = std::max(grows.since, grows.watch.since());
  const int64_t progress = grows.disk->growth_progress();
  if (progress != grows.progress) {
    grows.progress = progress;
    grows.since = now;
    return absl::OkStatus();
  }
  if (now < grows.since + patience_) return absl::OkStatus();
  grows.late = true;
  return WithIoFault(
      absl::DeadlineExceededError(absl::StrCat(
          name(path), ": growing by ", grows.growth_bytes,
          " bytes: no answer for ", absl::FormatDuration(now - grows.since))),
      {.path = name(path)});
}

absl::Time DiskPaths::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Path& path : paths_) {
    if (path.growing && !path.late) {
      next = std::min({next, path.since + patience_, path.watch.next_look()});
    }
  }
  return next;
}

DiskPaths::Answer DiskPaths::OnGrown(const Grown& message) {
  Path& grew = at(message.path);
  grew.growing = false;
  grew.refused_growth = !message.gained_bytes.ok();
  if (message.gained_bytes.ok()) grew.disk->AddSpace(*message.gained_bytes);
  return {message.gained_bytes.status(), std::exchange(grew.late, false),
          grew.must_grow};
}

void DiskPaths::StartReclaim(int path) {
  at(path).background->Run([disk = at(path).disk, inbox = inbox_, path] {
    inbox->Post(Reclaimed{path, disk->Reclaim()});
  });
}

void DiskPaths::OnReclaimed(const Reclaimed& message) {
  if (message.more && !removing_) StartReclaim(message.path);
}

// After what the file grows by, if it does.
void DiskPaths::StartRemovals() {
  removing_ = true;
  for (int i = 0; i < count(); ++i) {
    at(i).removing = true;
    at(i).background->Run([disk = at(i).disk, inbox = inbox_, path = i] {
      inbox->Post(Removed{path, disk->Remove()});
    });
  }
}

void DiskPaths::OnRemoved(const Removed& message) {
  at(message.path).removing = false;
  removal_status_.Update(message.status);
}

std::vector<std::string> DiskPaths::unremoved() const {
  std::vector<std::string> names;
  for (const Path& path : paths_) {
    if (path.removing) names.push_back(path.disk->info().file);
  }
  return names;
}

void DiskPaths::LeaveBehind() {
  for (const Path& path : paths_) {
    const auto* const left = new std::shared_ptr<DiskFile>(path.disk);
    if (__lsan_ignore_object != nullptr) __lsan_ignore_object(left);
  }
}

}  // namespace terrace
