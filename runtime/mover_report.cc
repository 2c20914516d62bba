// What the mover says of itself.
#include "absl/strings/str_cat.h"
#include "runtime/mover.h"

namespace terrace {

PathState Mover::StateOf(int path) const {
  if (placement_.refuses(path) || paths_.late(path)) {
    return PathState::kRefusesWrites;
  }
  if (placement_.reads_fail(path)) return PathState::kUnreadable;
  const bool slow =
      placement_.read_rate(path).slow() || placement_.write_rate(path).slow();
  return slow ? PathState::kSlow : PathState::kHealthy;
}

Stats Mover::MakeStats() const {
  Stats stats;
  const EngineInfo engine = io_->engine_info();
  stats.engine = engine.name;
  stats.engine_reason = engine.reason;
  stats.buffers_registered = engine.buffers_registered;
  stats.late_completions = engine.late_completions;
  stats.paced_completions = engine.paced_completions;
  stats.host_budget_bytes = space_.capacity_bytes();
  stats.host_used_bytes = space_.used_bytes();
  stats.host_peak_bytes = peak_bytes_;
  for (const Window& window : windows_) {
    if (window.open) stats.window_bytes += window.range.size_bytes;
  }
  stats.resident_bytes = resident_bytes_;
  std::vector<int64_t> tensors(meters_.size());
  for (const auto& entry : table_.entries()) {
    if (entry != nullptr && entry->path >= 0) ++tensors[entry->path];
  }
  for (int i = 0; i < paths_.count(); ++i) {
    const IoPathStats io = io_->stats(i);
    const DiskFileInfo& info = paths_.info(i);
    PathStats path;
    path.directory = info.directory;
    path.file = info.file;
    path.direct_io = info.direct_io;
    path.direct_io_reason = info.direct_io_reason;
    path.state = StateOf(i);
    path.degraded = path.state == PathState::kRefusesWrites;
    path.write_error = meters_[i].write_error;
    path.read_bytes_per_second = placement_.read_rate(i).bytes_per_second();
    path.write_bytes_per_second = placement_.write_rate(i).bytes_per_second();
    path.tensors = tensors[i];
    path.tensors_moved_in = meters_[i].moves;
    path.capacity_bytes = paths_.capacity_bytes(i);
    path.used_bytes = paths_.used_bytes(i);
    path.bytes_read = io.bytes_read;
    path.bytes_written = io.bytes_written;
    path.requests_read = io.requests_read;
    path.requests_written = io.requests_written;
    path.retries = io.retries;
    path.continuations = io.continuations;
    stats.quarantined_bytes += io.quarantined_bytes;
    stats.paths.push_back(std::move(path));
  }
  stats.demand_reads = demand_reads_;
  stats.prefetch_reads = prefetch_reads_;
  stats.prefetch_hits = prefetch_hits_;
  stats.hits = hits_;
  stats.evictions = evictions_;
  stats.first_error = first_error_;
  return stats;
}

void Mover::Note(TranscriptEvent event, const TransferRecord& transfer,
                 absl::StatusCode code) {
  if (transcript_ == nullptr) return;
  TranscriptLine line;
  line.at = clock_.Now();
  line.event = event;
  line.code = code;
  line.tensor = transfer.entry->id.value;
  const bool reads = transfer.direction == IoDirection::kRead;
  line.from = reads ? 1 + transfer.path : 0;
  line.to = reads ? 0 : 1 + transfer.path;
  line.io_class = static_cast<int>(transfer.io_class);
  line.generation = transfer.generation;
  transcript_->push_back(line);
}

void Mover::Note(const Queue& queue, const Ready& ready) {
  if (transcript_ == nullptr) return;
  TranscriptLine line;
  line.at = clock_.Now();
  line.event = TranscriptEvent::kReady;
  line.code = ready.pins.status().code();
  line.queue = queue.id;
  line.tag = ready.tag;
  line.cause = static_cast<int>(ready.cause);
  transcript_->push_back(line);
}

absl::Status Mover::CheckInvariants() const {
  absl::Status status = table_.CheckInvariants();
  if (!status.ok()) return status;
  int64_t sum = 0;
  for (const Window& window : windows_) {
    if (window.open) sum += window.range.size_bytes;
  }
  int64_t resident_bytes = 0;
  int leaving = 0;
  for (const TensorEntry* entry : residents_) {
    resident_bytes += entry->extent.size_bytes;
    leaving += entry->leaving ? 1 : 0;
  }
  if (resident_bytes != resident_bytes_ || leaving != leaving_) {
    return absl::InternalError(absl::StrCat(
        "residents have ", resident_bytes, " bytes, ", leaving,
        " are leaving; counted were ", resident_bytes_, " and ", leaving_));
  }
  WantedTensors wanted;
  for (const Queue* queue : open_queues_) {
    for (const auto& [id, group] : queue->waiting) wanted.Add(group.wants);
  }
  for (const auto& [id, admitted] : admitted_) {
    const bool open = !queues_.at(admitted.first)->closed;
    if (open) wanted.Add(admitted.second.wants);
  }
  if (!(wanted == wanted_)) {
    return absl::InternalError("the groups want others than were counted");
  }
  std::vector<int64_t> stored(meters_.size());
  for (const auto& entry : table_.entries()) {
    if (entry == nullptr || entry->path < 0) continue;
    stored[entry->path] += entry->home.size_bytes;
    if (entry->moves()) stored[entry->target_path] += entry->target.size_bytes;
  }
  for (int i = 0; i < paths_.count(); ++i) {
    if (stored[i] == paths_.used_bytes(i)) continue;
    return absl::InternalError(
        absl::StrCat(paths_.name(i), ": its tensors have ", stored[i],
                     " bytes, its books say ", paths_.used_bytes(i)));
  }
  sum += resident_bytes + quarantined_bytes_;
  if (sum != space_.used_bytes() ||
      space_.used_bytes() > space_.capacity_bytes()) {
    return absl::InternalError(
        absl::StrCat("extents add up to ", sum, " bytes, the budget says ",
                     space_.used_bytes(), " of ", space_.capacity_bytes()));
  }
  return absl::OkStatus();
}

}  // namespace terrace
