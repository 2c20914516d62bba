#include "tests/support/accelerator/block_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace terrace {
namespace {

int64_t SizeOf(AddressRange range) {
  return static_cast<int64_t>(range.end - range.begin);
}

}  // namespace

BlockPool::BlockPool(AddressRange range, size_t granule, size_t limit_bytes)
    : granule_(granule), limit_bytes_(limit_bytes) {
  free_[range.begin] = {range.end};
}

// Of the home's the smallest that fits, and of these the one freed last: what a
// stream has just freed is used again at once.
BlockPool::FreeRanges::iterator BlockPool::FindFree(size_t bytes,
                                                    AcceleratorStream home) {
  auto best = free_.end();
  const auto is_better = [&](const FreeRanges::iterator range) {
    if (best == free_.end()) return true;
    const FreeRange& found = range->second;
    if ((found.home == home) != (best->second.home == home)) {
      return found.home == home;
    }
    const size_t size = found.end - range->first;
    const size_t least = best->second.end - best->first;
    return size != least ? size < least : found.freed > best->second.freed;
  };
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second.home != home && range->second.home != kNobody) continue;
    if (range->second.end - range->first < bytes) continue;
    if (is_better(range)) best = range;
  }
  return best;
}

std::optional<AddressRange> BlockPool::Allocate(size_t bytes,
                                                AcceleratorStream home) {
  const size_t rounded =
      std::max((bytes + granule_ - 1) / granule_, size_t{1}) * granule_;
  const auto found = FindFree(rounded, home);
  if (found == free_.end()) return std::nullopt;
  if (found->second.home == kNobody) {
    const int64_t held = allocated_bytes_ + cached_bytes_;
    if (held > static_cast<int64_t>(limit_bytes_) ||
        rounded > limit_bytes_ - static_cast<size_t>(held)) {
      return std::nullopt;
    }
  } else {
    cached_bytes_ -= static_cast<int64_t>(rounded);
  }
  const AddressRange range{found->first, found->first + rounded};
  if (range.end < found->second.end) free_[range.end] = found->second;
  free_.erase(found);
  blocks_[range.begin] = Block{range, home, {}};
  allocated_bytes_ += SizeOf(range);
  peak_bytes_ = std::max(peak_bytes_, allocated_bytes_);
  return range;
}

std::optional<AddressRange> BlockPool::BlockOf(uintptr_t address) const {
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return std::nullopt;
  --block;
  const AddressRange range = block->second.range;
  if (address >= range.end) return std::nullopt;
  return range;
}

void BlockPool::RecordUse(uintptr_t address, AcceleratorStream stream) {
  const auto range = BlockOf(address);
  if (!range) return;
  Block& block = blocks_.at(range->begin);
  if (stream != block.home) block.recorded.insert(stream);
}

void BlockPool::Free(uintptr_t address, const MarkOf& mark_of) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return;
  Waiting waiting{std::move(found->second), {}};
  blocks_.erase(found);
  for (const AcceleratorStream stream : waiting.block.recorded) {
    waiting.uses.push_back(mark_of(stream));
  }
  if (waiting.uses.empty()) {
    GiveBack(waiting.block.range, waiting.block.home);
  } else {
    waiting_.push_back(std::move(waiting));
  }
}

std::vector<BlockPool::Returned> BlockPool::Collect(
    const std::function<bool(TaskMark)>& is_over) {
  std::vector<Returned> returned;
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    const bool is_done =
        std::all_of(waiting.uses.begin(), waiting.uses.end(),
                    [&](const Pending& use) { return is_over(use.until); });
    if (!is_done) return false;
    Returned back{waiting.block.range, {}};
    for (const Pending& use : waiting.uses) back.done.Join(use.done);
    returned.push_back(std::move(back));
    GiveBack(waiting.block.range, waiting.block.home);
    return true;
  });
  return returned;
}

void BlockPool::GiveBack(AddressRange range, AcceleratorStream home) {
  allocated_bytes_ -= SizeOf(range);
  cached_bytes_ += SizeOf(range);
  Merge(
      free_.insert_or_assign(range.begin, FreeRange{range.end, home, ++frees_})
          .first);
}

void BlockPool::Merge(FreeRanges::iterator range) {
  for (auto next = std::next(range);
       next != free_.end() && next->first == range->second.end &&
       next->second.home == range->second.home;
       next = free_.erase(next)) {
    range->second.end = next->second.end;
  }
  if (range == free_.begin()) return;
  const auto before = std::prev(range);
  if (before->second.end != range->first ||
      before->second.home != range->second.home) {
    return;
  }
  before->second.end = range->second.end;
  before->second.freed = range->second.freed;
  free_.erase(range);
}

std::vector<AddressRange> BlockPool::Release() {
  std::vector<AddressRange> released;
  for (auto& [begin, range] : free_) {
    if (range.home == kNobody) continue;
    released.push_back({begin, range.end});
    range.home = kNobody;
  }
  cached_bytes_ = 0;
  for (const AddressRange range : released) {
    const auto found = free_.find(range.begin);  // or part of one before
    if (found != free_.end()) Merge(found);
  }
  return released;
}

BlockPoolStats BlockPool::stats() const {
  return {allocated_bytes_, peak_bytes_, static_cast<int64_t>(blocks_.size()),
          cached_bytes_};
}

}  // namespace terrace
