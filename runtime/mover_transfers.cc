// Bytes between the arena and the paths: fetch, verify, hash, write, and what
// each end of them means for the tensor.
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/checksum.h"
#include "runtime/base/check.h"
#include "runtime/base/io_fault.h"
#include "runtime/mover.h"
#include "terrace/runtime.h"
#include "tiers/extent_header.h"

namespace terrace {
namespace {

// A fetch whose bytes are wrong is read once more: what was flipped on the
// way is then whole, what is wrong on the disk is not.
constexpr int kVerifyRetries = 1;

ExtentHeader HeaderOf(const TensorEntry& entry, uint64_t path_id,
                      const Extent& place, uint64_t generation) {
  ExtentHeader header;
  header.path_id = path_id;
  header.own_offset = place.offset;
  header.tensor_id = entry.id.value;
  header.generation = generation;
  header.payload_bytes = entry.spec.size_bytes;
  header.global_offset = entry.spec.global_offset;
  header.name = entry.spec.name;
  return header;
}

absl::Status VerifyCopy(absl::Span<const std::byte> copy,
                        ExtentHeader expected) {
  ExtentHeader found;
  absl::Status status =
      DecodeExtentHeader(copy.subspan(0, kExtentHeaderBytes), &found);
  if (!status.ok()) return status;
  expected.payload_hash =
      Checksum(copy.data() + kExtentHeaderBytes, expected.payload_bytes);
  return MatchExtentHeader(found, expected);
}

}  // namespace

void Mover::StartRead(TensorEntry& entry, IoClass io_class) {
  TERRACE_CHECK(entry.path >= 0 && entry.extent.size_bytes != 0);
  entry.host = HostState::kLoading;
  entry.io_tag = next_transfer_++;
  transfers_[entry.io_tag] = {.entry = &entry,
                              .direction = IoDirection::kRead,
                              .io_class = io_class,
                              .generation = entry.home_generation,
                              .path = entry.path,
                              .place = entry.home,
                              .extent = entry.extent,
                              .window = entry.window,
                              .slot = entry.slot};
  Note(TranscriptEvent::kMoveStarted, transfers_[entry.io_tag],
       absl::StatusCode::kOk);
  IoTransfer transfer;
  transfer.direction = IoDirection::kRead;
  transfer.io_class = io_class;
  transfer.data = arena_.data() + entry.extent.offset;
  transfer.offset = entry.home.offset;
  transfer.size_bytes = entry.extent.size_bytes;
  transfer.tag = entry.io_tag;
  transfer.timeout = io_timeout_;
  io_->Enqueue(entry.path, transfer);
}

void Mover::StartVerify(TensorEntry& entry) {
  entry.host = HostState::kVerifying;
  ++hashing_;
  absl::Span<std::byte> copy =
      arena_.subspan(entry.extent.offset, entry.extent.size_bytes);
  const ExtentHeader expected =
      HeaderOf(entry, paths_.id(entry.path), entry.home, entry.home_generation);
  executor_.Run([copy, expected, inbox = inbox_, id = entry.id] {
    inbox->Post(Checked{id, VerifyCopy(copy, expected)});
  });
}

// What does not stay goes home at once; waiters for the same tensor were
// admitted before, so what is still idle here nobody wants now.
void Mover::StartWriteBacks() {
  std::deque<TensorEntry*> dirty;
  dirty.swap(dirty_);
  for (TensorEntry* entry : dirty) {
    const bool goes = entry->window != kNoWindow || entry->leaving;
    if (!entry->idle() || !entry->dirty() || !goes || entry->path < 0 ||
        !entry->write_error.ok()) {
      // By then they may do better.
      if (entry->write == WriteState::kIdle) entry->refused_by.clear();
      continue;
    }
    if (!StartHash(*entry)) dirty_.push_back(entry);
  }
}

// False: it waits for room.
bool Mover::StartHash(TensorEntry& entry) {
  TERRACE_CHECK(entry.idle() && entry.path >= 0);
  const Room room = ChooseTarget(entry);
  if (room == Room::kNone) GiveUpWrite(entry);
  if (room != Room::kFound) return room == Room::kNone;
  entry.write = WriteState::kHashing;
  ++hashing_;
  absl::Span<std::byte> copy =
      arena_.subspan(entry.extent.offset, entry.extent.size_bytes);
  ExtentHeader header = HeaderOf(entry, paths_.id(entry.target_path),
                                 entry.target, entry.generation);
  executor_.Run([copy, header, inbox = inbox_, id = entry.id]() mutable {
    header.payload_hash =
        Checksum(copy.data() + kExtentHeaderBytes, header.payload_bytes);
    EncodeExtentHeader(header, copy.subspan(0, kExtentHeaderBytes));
    inbox->Post(Sealed{id});
  });
  return true;
}

void Mover::StartWrite(TensorEntry& entry) {
  entry.write = WriteState::kWriting;
  // In place it is torn from here until it is whole.
  if (!entry.moves()) entry.home_generation = 0;
  entry.io_tag = next_transfer_++;
  transfers_[entry.io_tag] = {
      .entry = &entry,
      .direction = IoDirection::kWrite,
      .io_class = IoClass::kWriteBack,
      .generation = entry.generation,
      .path = entry.target_path,
      .place = entry.target,
      .failures = placement_.failures(entry.target_path),
      .extent = entry.extent,
      .window = entry.window,
      .slot = entry.slot};
  Note(TranscriptEvent::kMoveStarted, transfers_[entry.io_tag],
       absl::StatusCode::kOk);
  IoTransfer transfer;
  transfer.direction = IoDirection::kWrite;
  transfer.io_class = IoClass::kWriteBack;
  transfer.data = arena_.data() + entry.extent.offset;
  transfer.offset = entry.target.offset;
  transfer.size_bytes = entry.extent.size_bytes;
  transfer.tag = entry.io_tag;
  transfer.timeout = io_timeout_;
  io_->Enqueue(entry.target_path, transfer);
}

void Mover::Handle(Sealed& sealed) {
  --hashing_;
  TensorEntry& entry = *table_.Find(sealed.tensor);
  entry.write = WriteState::kIdle;
  if (closing_ || entry.unregistered) return DropTarget(entry);
  // A reader may have pinned it meanwhile; only a writer's hold waits for
  // the state to be idle, and he is admitted before the next write-back.
  bool wanted = false;
  for (const Queue* queue : open_queues_) {
    if (queue->waiting.empty()) continue;
    for (const Want& want : queue->waiting.begin()->second.wants) {
      wanted |= want.tensor == entry.id && want.access != Access::kRead;
    }
  }
  if (wanted && !entry.yielded) {
    entry.yielded = true;
    DropTarget(entry);
    SetLeaving(entry, false);
    dirty_.push_back(&entry);
  } else {
    StartWrite(entry);
  }
}

void Mover::Handle(Checked& checked) {
  --hashing_;
  TensorEntry& entry = *table_.Find(checked.tensor);
  if (checked.status.ok() || entry.unregistered) {
    CopyBecameValid(entry);
    return;
  }
  if (entry.verify_failures++ < kVerifyRetries && !closing_) {
    StartRead(entry, IoClass::kDemand);
    return;
  }
  const std::string path = paths_.name(entry.path);
  const absl::Status loss = absl::DataLossError(
      absl::StrCat("tensor '", entry.spec.name, "': ", path, ", offset ",
                   entry.home.offset, ", ", entry.extent.size_bytes,
                   " bytes: ", absl::string_view(checked.status.message())));
  LoseTensor(entry,
             WithIoFault(loss, {.path = path, .offset = entry.home.offset}));
}

void Mover::OnCompletion(const Completion& completion) {
  auto found = transfers_.find(completion.tag);
  TERRACE_CHECK(found != transfers_.end());
  const TransferRecord record = found->second;
  Note(completion.released ? TranscriptEvent::kMoveReleased
                           : TranscriptEvent::kMoveEnded,
       record, completion.status.code());
  if (completion.status.ok() && !completion.released) {
    PathMeter& meter = meters_[static_cast<size_t>(record.path)];
    ++(record.direction == IoDirection::kRead ? meter.reads : meter.writes);
  }
  if (!completion.quarantined) transfers_.erase(found);
  if (record.direction == IoDirection::kRead) {
    OnRead(record, completion);
  } else {
    OnWrite(record, completion);
  }
}

void Mover::OnRead(TransferRecord record, const Completion& completion) {
  TensorEntry& entry = *record.entry;
  if (completion.released) {
    // The late buffer is back: its place was kept aside since the deadline.
    if (record.window == kNoWindow) {
      space_.Free(record.extent);
      quarantined_bytes_ -= record.extent.size_bytes;
    } else {
      windows_[record.window].quarantined[record.slot] = false;
    }
    return;
  }
  if (!absl::IsCancelled(completion.status)) {
    placement_.OnRead(record.path, completion.status.ok());
  }
  if (completion.status.ok()) {
    StartVerify(entry);
    return;
  }
  if (absl::IsDataLoss(completion.status) && !entry.unregistered) {
    LoseTensor(
        entry,
        Reworded(completion.status,
                 absl::StrCat("tensor '", entry.spec.name, "': ",
                              absl::string_view(completion.status.message()))));
    return;
  }
  if (completion.quarantined) {
    // The place stays the kernel's; the entry lets go of it.
    if (entry.window == kNoWindow) {
      EraseResident(entry);
      quarantined_bytes_ += entry.extent.size_bytes;
    } else {
      windows_[entry.window].owners[entry.slot] = nullptr;
      windows_[entry.window].quarantined[entry.slot] = true;
    }
    entry.extent = {};
  }
  // A fetch ahead that failed is nobody's error: who asks will fetch again.
  entry.prefetch_failed = entry.waiting_groups.empty();
  if (!entry.waiting_groups.empty()) Report(entry.queue, completion.status);
  entry.pins = 0;  // holds of groups that now fail
  entry.write_pinned = false;
  DropHostCopy(entry);
  FailWaiters(entry, completion.status);
}

void Mover::OnWrite(TransferRecord record, const Completion& completion) {
  TensorEntry& entry = *record.entry;
  if (completion.released) entry.quarantined = false;
  if (completion.quarantined) entry.quarantined = true;
  entry.write = WriteState::kIdle;
  if (completion.status.ok() && !completion.quarantined) {
    placement_.OnWritten(record.path, true, record.failures);
    AdoptTarget(entry);
    entry.refused_by.clear();
    entry.home_generation = record.generation;
    entry.yielded = false;
    entry.write_error = absl::OkStatus();
    if (entry.leaving && entry.idle()) DropHostCopy(entry);
    SetLeaving(entry, false);
    return;
  }
  if (!completion.quarantined) DropTarget(entry);
  if (absl::IsCancelled(completion.status)) {
    SetLeaving(entry, false);
    entry.refused_by.clear();
    if (entry.window != kNoWindow) dirty_.push_back(&entry);
    return;
  }
  placement_.OnWritten(record.path, false, record.failures);
  if (!entry.unregistered) {
    WriteFailed(entry, record.path, completion.status);
    return;
  }
  // Nobody's error, but the path's; who waits for the slot hears why.
  meters_[static_cast<size_t>(record.path)].write_error = completion.status;
  SetLeaving(entry, false);
  if (completion.quarantined) entry.write_error = completion.status;
}

void Mover::LoseTensor(TensorEntry& entry, const absl::Status& status) {
  entry.loss = status;
  Report(entry.queue, status);
  entry.pins = 0;  // holds of groups that now fail
  entry.write_pinned = false;
  DropHostCopy(entry);
  FailWaiters(entry, status);
}

void Mover::Report(int64_t queue, const absl::Status& status) {
  // What is cancelled by a Close reads and writes a file that goes.
  if (closing_ || absl::IsCancelled(status)) return;
  if (first_error_.ok()) first_error_ = status;
  Queue* const hears = FindQueue(queue);
  if (hears != nullptr && hears->step_open) hears->first_error.Update(status);
}

}  // namespace terrace
