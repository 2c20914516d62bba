#include "tests/support/accelerator/pinned_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>
#include <vector>

namespace terrace {
namespace {

constexpr uintptr_t kPage = TwinMapping::kPageBytes;
constexpr AcceleratorStream kNoHome = -2;

std::atomic<PinnedPages*> the_memory = nullptr;
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

PinnedPages::PinnedPages(DeviceStreams& streams, size_t address_bytes)
    : streams_(streams),
      mapping_(address_bytes, Grant::kAll),
      pool_(mapping_.range(), kPage, address_bytes) {
  the_memory = this;
  struct sigaction own = {};
  own.sa_sigaction = OnFault;
  own.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &own, &handler_before);
}

PinnedPages::~PinnedPages() {
  sigaction(SIGSEGV, &handler_before, nullptr);
  the_memory = nullptr;
}

void PinnedPages::OnFault(int signal, siginfo_t* info, void* context) {
  PinnedPages* const memory = the_memory;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (memory == nullptr || !memory->Open(address)) {
    HandOn(signal, info, context);
  }
}

bool PinnedPages::Open(uintptr_t address) {
  if (!mapping_.Has(address)) return false;
  const uintptr_t page = address / kPage * kPage;
  const size_t at = fault_count_++;
  if (at < kMostFaults) faults_[at] = page;
  const int error = errno;
  mprotect(reinterpret_cast<void*>(page), kPage, PROT_READ | PROT_WRITE);
  errno = error;
  return true;
}

void PinnedPages::NoteFaults() {
  const std::lock_guard lock(mutex_);
  NoteFaultsLocked();
}

// A page of which nothing is known was opened for all as it faulted.
void PinnedPages::NoteFaultsLocked() {
  const size_t count = std::min(fault_count_.exchange(0), kMostFaults);
  for (size_t at = 0; at < count; ++at) {
    const auto closed = closed_.find(faults_[at]);
    if (closed == closed_.end()) continue;
    const bool is_read = closed->second.grant == Grant::kReading;
    streams_.ReportFault({closed->first, closed->first + kPage}, is_read,
                         closed->second.stream);
    closed_.erase(closed);
  }
}

void PinnedPages::Close(AddressRange pages, const Closed& how) {
  mapping_.Set(pages, how.grant);
  for (uintptr_t page = pages.begin; page < pages.end; page += kPage) {
    if (how.grant == Grant::kAll) {
      closed_.erase(page);
    } else {
      closed_[page] = how;
    }
  }
}

std::optional<uintptr_t> PinnedPages::Allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (const BlockPool::Returned& back : pool_.Collect(
           [&](TaskMark mark) { return streams_.IsOverUnseen(mark); })) {
    streams_.NoteSettled(back.range, back.done);
    Close(back.range, {Grant::kAll});
  }
  const auto range = pool_.Allocate(bytes, kNoHome);
  if (!range) return std::nullopt;
  return range->begin;
}

void PinnedPages::Free(uintptr_t address) {
  if (streams_.is_dead()) return;  // the parent's
  const std::lock_guard lock(mutex_);
  pool_.Free(address, [&](AcceleratorStream stream) {
    const StreamMark mark = streams_.RecordUnseen(stream);
    return BlockPool::Pending{mark.task, mark.done};
  });
}

void PinnedPages::Register(AddressRange range) {
  const std::lock_guard lock(mutex_);
  registered_[range.begin] = range.end;
}

bool PinnedPages::Unregister(uintptr_t begin) {
  const std::lock_guard lock(mutex_);
  return registered_.erase(begin) > 0;
}

bool PinnedPages::IsPinned(uintptr_t address) const {
  const std::lock_guard lock(mutex_);
  if (mapping_.Has(address)) return pool_.BlockOf(address).has_value();
  const auto after = registered_.upper_bound(address);
  return after != registered_.begin() && address < std::prev(after)->second;
}

std::byte* PinnedPages::Twin(uintptr_t address) const {
  return mapping_.Has(address) ? mapping_.Twin(address)
                               : reinterpret_cast<std::byte*>(address);
}

void PinnedPages::NoteUse(const Touch& touch, AcceleratorStream stream) {
  if (touch.bytes.is_empty() || !mapping_.Has(touch.bytes.begin)) return;
  const std::lock_guard lock(mutex_);
  pool_.RecordUse(touch.bytes.begin, stream);
  // Another thread may have waited for it already.
  if (streams_.IsFreeForCpu({touch.bytes, /*is_write=*/true})) return;
  NoteFaultsLocked();
  const AddressRange pages = PagesOf(touch.bytes);
  if (touch.is_write) {
    Close(pages, {Grant::kNothing, stream});
    return;
  }
  for (uintptr_t page = pages.begin; page < pages.end; page += kPage) {
    if (!closed_.contains(page)) {
      Close({page, page + kPage}, {Grant::kReading, stream});
    }
  }
}

void PinnedPages::OpenWaited() {
  const std::lock_guard lock(mutex_);
  NoteFaultsLocked();
  std::vector<std::pair<uintptr_t, Closed>> pages(closed_.begin(),
                                                  closed_.end());
  for (const auto& [page, closed] : pages) {
    const AddressRange range{page, page + kPage};
    if (streams_.IsFreeForCpu({range, /*is_write=*/true})) {
      Close(range, {Grant::kAll});
    } else if (closed.grant == Grant::kNothing &&
               streams_.IsFreeForCpu({range, /*is_write=*/false})) {
      Close(range, {Grant::kReading, closed.stream});
    }
  }
}

BlockPoolStats PinnedPages::stats() const {
  const std::lock_guard lock(mutex_);
  return pool_.stats();
}

}  // namespace terrace
