#include "libtorch/accelerator/stream_uses.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace terrace {

absl::Status StreamUses::BeginCopy(StreamedDevice& memory, StreamId home,
                                   StreamId copy) const {
  if (!rules_.Has(StreamRule::kCopyWaitsForAllocation)) return absl::OkStatus();
  TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceEvent> allocated,
                           memory.Record(home));
  return memory.Await(copy, *allocated);
}

absl::Status StreamUses::Begin(StreamedDevice& memory, StreamId home,
                               std::shared_ptr<DeviceEvent> arrived) {
  if (!rules_.Has(StreamRule::kUseWaitsForCopy)) arrived = nullptr;
  // Also for a block that ends unused: its home's next work has its memory.
  if (arrived != nullptr) {
    TERRACE_RETURN_IF_ERROR(memory.Await(home, *arrived));
  }
  MutexLock lock(mutex_);
  streams_ = {home};
  arrived_ = std::move(arrived);
  return absl::OkStatus();
}

absl::Status StreamUses::Use(StreamedDevice& memory, StreamedBlock& block,
                             StreamId stream, bool is_capturing) {
  std::shared_ptr<DeviceEvent> arrived;
  {
    MutexLock lock(mutex_);
    if (Has(stream)) {
      NoteCapture(is_capturing);
      return absl::OkStatus();
    }
    arrived = arrived_;
  }
  if (arrived != nullptr) {
    if (is_capturing) {
      return absl::FailedPreconditionError(
          "a graph is being captured on a stream that has not used it since it "
          "was brought; hold a lease before the capture begins");
    }
    TERRACE_RETURN_IF_ERROR(memory.Await(stream, *arrived));
  }
  if (rules_.Has(StreamRule::kEachStreamIsRecorded)) {
    TERRACE_RETURN_IF_ERROR(block.RecordUse(stream));
  }
  // Not before: another thread that finds it here gives the stream its work.
  MutexLock lock(mutex_);
  NoteCapture(is_capturing);
  if (!Has(stream)) streams_.push_back(stream);
  return absl::OkStatus();
}

absl::Status StreamUses::Settle(StreamedDevice& memory) {
  std::shared_ptr<DeviceEvent> arrived;
  {
    MutexLock lock(mutex_);
    arrived = arrived_;
  }
  if (arrived == nullptr) return absl::OkStatus();
  TERRACE_RETURN_IF_ERROR(memory.Wait(*arrived));
  MutexLock lock(mutex_);
  if (arrived_ == arrived) arrived_ = nullptr;
  return absl::OkStatus();
}

void StreamUses::NoteCollective() {
  if (!rules_.Has(StreamRule::kCollectivesTensorsStay)) return;
  MutexLock lock(mutex_);
  collective_ = Collective::kThisStep;
}

void StreamUses::NoteStep() {
  MutexLock lock(mutex_);
  if (collective_ == Collective::kThisStep) collective_ = Collective::kEarlier;
}

Hindrance StreamUses::FindHindrance(StreamedDevice& memory) const {
  Collective collective = Collective::kNone;
  {
    MutexLock lock(mutex_);
    if (is_in_graph_) return Hindrance::kGraph;
    collective = collective_;
  }
  if (rules_.Has(StreamRule::kGraphsTensorsStay)) {
    if (memory.IsCapturing(memory.CurrentStream())) return Hindrance::kCapture;
    for (const StreamId stream : streams()) {
      if (memory.IsCapturing(stream)) return Hindrance::kCapture;
    }
  }
  if (collective == Collective::kThisStep) return Hindrance::kCollective;
  return collective == Collective::kEarlier ? Hindrance::kUnfinished
                                            : Hindrance::kNone;
}

absl::Status StreamUses::AwaitCollectives(StreamedDevice& memory) {
  TERRACE_RETURN_IF_ERROR(memory.WaitForAll());
  MutexLock lock(mutex_);
  collective_ = Collective::kNone;
  return absl::OkStatus();
}

absl::Status StreamUses::AwaitUses(StreamedDevice& memory,
                                   StreamId stream) const {
  if (!rules_.Has(StreamRule::kCopyDownWaitsForUses)) return absl::OkStatus();
  for (const StreamId used : streams()) {
    TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceEvent> until_now,
                             memory.Record(used));
    TERRACE_RETURN_IF_ERROR(memory.Await(stream, *until_now));
  }
  return absl::OkStatus();
}

void StreamUses::NoteCapture(bool is_capturing) {
  if (is_capturing && rules_.Has(StreamRule::kGraphsTensorsStay)) {
    is_in_graph_ = true;
  }
}

bool StreamUses::Has(StreamId stream) const {
  return std::find(streams_.begin(), streams_.end(), stream) != streams_.end();
}

std::vector<StreamId> StreamUses::streams() const {
  MutexLock lock(mutex_);
  return streams_;
}

}  // namespace terrace
