#include "libtorch/accelerator/stream_uses.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "base/status_macros.h"

namespace terrace {

StreamUses::Noted StreamUses::Note(StreamId stream) {
  MutexLock lock(mutex_);
  if (absl::c_linear_search(streams_, stream)) return {};
  const bool is_noted =
      streams_.empty() || rules_.Has(StreamRule::kEachStreamIsNoted);
  if (is_noted) streams_.push_back(stream);
  return {true, filled_};
}

void StreamUses::NoteFill(std::shared_ptr<DeviceEvent> filled,
                          StreamId stream) {
  Note(stream);
  if (!rules_.Has(StreamRule::kUseWaitsForCopy)) return;
  MutexLock lock(mutex_);
  filled_ = std::move(filled);
}

absl::StatusOr<DeviceEvents> StreamUses::Events(StreamedDevice& device) const {
  DeviceEvents events;
  absl::InlinedVector<StreamId, 2> streams;
  {
    MutexLock lock(mutex_);
    streams = streams_;
  }
  if (rules_.Has(StreamRule::kSliceIsHeldForItsEvents)) {
    for (const StreamId stream : streams) {
      TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<DeviceEvent> event,
                               device.Record(stream));
      events.push_back(std::move(event));
    }
  }
  return events;
}

absl::StatusOr<DeviceEvents> StreamUses::TakeEvents(StreamedDevice& device) {
  absl::StatusOr<DeviceEvents> events = Events(device);
  if (!events.ok()) return events;
  MutexLock lock(mutex_);
  streams_.clear();
  filled_.reset();
  return events;
}

}  // namespace terrace
