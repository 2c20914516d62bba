#include "tests/support/accelerator/pinned_memory.h"

#include <atomic>
#include <iterator>
#include <vector>

namespace terrace {
namespace {

constexpr uintptr_t kPage = TwinMapping::kPageBytes;
constexpr AcceleratorStream kNoHome = -2;

std::atomic<PinnedMemory*> the_memory = nullptr;
struct sigaction handler_before = {};

AddressRange PagesOf(AddressRange bytes) {
  return {bytes.begin / kPage * kPage, (bytes.end + kPage - 1) / kPage * kPage};
}

// As if nobody had asked.
void HandOn(int signal, siginfo_t* info, void* context) {
  if ((handler_before.sa_flags & SA_SIGINFO) != 0) {
    handler_before.sa_sigaction(signal, info, context);
  } else if (handler_before.sa_handler == SIG_DFL ||
             handler_before.sa_handler == SIG_IGN) {
    struct sigaction usual = {};
    usual.sa_handler = SIG_DFL;
    sigaction(signal, &usual, nullptr);  // the access is made again, and ends
  } else {
    handler_before.sa_handler(signal);
  }
}

}  // namespace

PinnedMemory::PinnedMemory(DeviceStreams& streams, size_t address_bytes)
    : streams_(streams),
      mapping_(address_bytes, Grant::kAll),
      pool_(mapping_.range(), kPage, address_bytes) {
  the_memory = this;
  struct sigaction own = {};
  own.sa_sigaction = OnFault;
  own.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &own, &handler_before);
}

PinnedMemory::~PinnedMemory() {
  sigaction(SIGSEGV, &handler_before, nullptr);
  the_memory = nullptr;
}

void PinnedMemory::OnFault(int signal, siginfo_t* info, void* context) {
  PinnedMemory* const memory = the_memory;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (memory == nullptr || !memory->Open(address)) {
    HandOn(signal, info, context);
  }
}

bool PinnedMemory::Open(uintptr_t address) {
  if (!mapping_.Has(address)) return false;
  const AddressRange page = PagesOf({address, address + 1});
  const std::lock_guard lock(mutex_);
  const auto closed = closed_.find(page.begin);
  if (closed == closed_.end()) return true;  // by another thread, just now
  streams_.NoteCpuUse({page, closed->second == Grant::kReading}, "the CPU");
  Set(page, Grant::kAll);
  return true;
}

void PinnedMemory::Set(AddressRange pages, Grant grant) {
  mapping_.Set(pages, grant);
  for (uintptr_t page = pages.begin; page < pages.end; page += kPage) {
    if (grant == Grant::kAll) {
      closed_.erase(page);
    } else {
      closed_[page] = grant;
    }
  }
}

std::optional<uintptr_t> PinnedMemory::Allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (const BlockPool::Returned& back : pool_.Collect(
           [&](TaskMark mark) { return streams_.IsOverUnseen(mark); })) {
    streams_.NoteSettled(back.range, back.done);
    Set(back.range, Grant::kAll);
  }
  const auto range = pool_.Allocate(bytes, kNoHome);
  if (!range) return std::nullopt;
  return range->begin;
}

void PinnedMemory::Free(uintptr_t address) {
  if (streams_.is_dead()) return;  // the parent's
  const std::lock_guard lock(mutex_);
  pool_.Free(address, [&](AcceleratorStream stream) {
    const StreamMark mark = streams_.Record(stream);
    return BlockPool::Pending{mark.task, mark.done};
  });
}

void PinnedMemory::Register(AddressRange range) {
  const std::lock_guard lock(mutex_);
  registered_[range.begin] = range.end;
}

bool PinnedMemory::Unregister(uintptr_t begin) {
  const std::lock_guard lock(mutex_);
  return registered_.erase(begin) > 0;
}

bool PinnedMemory::IsPinned(uintptr_t address) const {
  const std::lock_guard lock(mutex_);
  if (mapping_.Has(address)) return pool_.BlockOf(address).has_value();
  const auto after = registered_.upper_bound(address);
  return after != registered_.begin() && address < std::prev(after)->second;
}

std::byte* PinnedMemory::Twin(uintptr_t address) const {
  return mapping_.Has(address) ? mapping_.Twin(address)
                               : reinterpret_cast<std::byte*>(address);
}

void PinnedMemory::NoteUse(const Touch& touch, AcceleratorStream stream) {
  if (touch.bytes.is_empty() || !mapping_.Has(touch.bytes.begin)) return;
  const std::lock_guard lock(mutex_);
  pool_.RecordUse(touch.bytes.begin, stream);
  // Another thread may have waited for it already.
  if (streams_.IsFreeForCpu({touch.bytes, /*is_write=*/true})) return;
  const AddressRange pages = PagesOf(touch.bytes);
  if (touch.is_write) {
    Set(pages, Grant::kNothing);
    return;
  }
  for (uintptr_t page = pages.begin; page < pages.end; page += kPage) {
    if (!closed_.contains(page)) Set({page, page + kPage}, Grant::kReading);
  }
}

void PinnedMemory::OpenWaited() {
  const std::lock_guard lock(mutex_);
  std::vector<uintptr_t> pages;
  for (const auto& [page, grant] : closed_) pages.push_back(page);
  for (const uintptr_t page : pages) {
    const AddressRange range{page, page + kPage};
    if (streams_.IsFreeForCpu({range, /*is_write=*/true})) {
      Set(range, Grant::kAll);
    } else if (closed_.at(page) == Grant::kNothing &&
               streams_.IsFreeForCpu({range, /*is_write=*/false})) {
      Set(range, Grant::kReading);
    }
  }
}

BlockPoolStats PinnedMemory::stats() const {
  const std::lock_guard lock(mutex_);
  return pool_.stats();
}

}  // namespace terrace
