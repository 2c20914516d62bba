#include "tests/support/accelerator/accelerator_memory.h"

namespace terrace {
namespace {

constexpr size_t kGranule = 512;

}  // namespace

AcceleratorMemory::AcceleratorMemory(DeviceStreams& streams,
                                     size_t address_bytes, size_t limit_bytes)
    : streams_(streams),
      mapping_(address_bytes, TwinMapping::Grant::kNothing),
      pool_(mapping_.range(), kGranule, limit_bytes) {}

void AcceleratorMemory::AddStream(AcceleratorStream stream) {
  const std::lock_guard lock(mutex_);
  own_.push_back(stream);
}

std::optional<uintptr_t> AcceleratorMemory::Allocate(size_t bytes,
                                                     AcceleratorStream home) {
  streams_.Enter("an allocation");
  for (const bool is_last : {false, true}) {
    std::vector<StreamMark> all;
    if (is_last) all = WaitForAll();
    const std::lock_guard lock(mutex_);
    Collect();
    if (is_last) Release(all);
    if (const auto range = pool_.Allocate(bytes, home)) {
      streams_.NoteAllocation(*range, home);
      return range->begin;
    }
  }
  return std::nullopt;
}

// Not known to the CPU's clock: that the allocator waited is no promise.
std::vector<StreamMark> AcceleratorMemory::WaitForAll() {
  std::vector<AcceleratorStream> own;
  {
    const std::lock_guard lock(mutex_);
    own = own_;
  }
  std::vector<StreamMark> all;
  for (const AcceleratorStream stream : own) {
    all.push_back(streams_.RecordUnseen(stream));
    streams_.WaitUnseen(all.back().task);
  }
  return all;
}

void AcceleratorMemory::Collect() {
  for (const BlockPool::Returned& back : pool_.Collect(
           [&](TaskMark mark) { return streams_.IsOverUnseen(mark); })) {
    streams_.NoteSettled(back.range, back.done);
  }
}

void AcceleratorMemory::Release(const std::vector<StreamMark>& all) {
  VectorClock done;
  for (const StreamMark& mark : all) done.Join(mark.done);
  for (const AddressRange range : pool_.Release()) {
    streams_.NoteSettled(range, done);
    constexpr uintptr_t kPage = TwinMapping::kPageBytes;
    const AddressRange pages{(range.begin + kPage - 1) / kPage * kPage,
                             range.end / kPage * kPage};
    if (!pages.is_empty()) mapping_.Discard(pages);
  }
}

void AcceleratorMemory::RecordUse(uintptr_t address, AcceleratorStream stream) {
  const std::lock_guard lock(mutex_);
  pool_.RecordUse(address, stream);
}

void AcceleratorMemory::Free(uintptr_t address) {
  if (streams_.is_dead()) return;  // the parent's
  const std::lock_guard lock(mutex_);
  pool_.Free(address, [&](AcceleratorStream stream) {
    const StreamMark mark = streams_.RecordUnseen(stream);
    return BlockPool::Pending{mark.task, mark.done};
  });
}

void AcceleratorMemory::EmptyCache() {
  const std::vector<StreamMark> all = WaitForAll();
  const std::lock_guard lock(mutex_);
  Collect();
  Release(all);
}

void AcceleratorMemory::SetLimit(size_t bytes) {
  const std::lock_guard lock(mutex_);
  pool_.set_limit_bytes(bytes);
}

size_t AcceleratorMemory::limit_bytes() const {
  const std::lock_guard lock(mutex_);
  return pool_.limit_bytes();
}

BlockPoolStats AcceleratorMemory::stats() const {
  const std::lock_guard lock(mutex_);
  return pool_.stats();
}

void AcceleratorMemory::ResetPeak() {
  const std::lock_guard lock(mutex_);
  pool_.ResetPeak();
}

}  // namespace terrace
