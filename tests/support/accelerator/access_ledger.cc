#include "tests/support/accelerator/access_ledger.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace terrace {

void AccessLedger::SplitAt(uintptr_t address) {
  auto after = cells_.upper_bound(address);
  if (after == cells_.begin()) return;
  const auto at = std::prev(after);
  if (at->first == address || at->second.end <= address) return;
  cells_.emplace_hint(after, address, at->second);
  at->second.end = address;
}

AccessLedger::Cells::iterator AccessLedger::Cover(AddressRange bytes) {
  SplitAt(bytes.begin);
  SplitAt(bytes.end);
  uintptr_t at = bytes.begin;
  while (at < bytes.end) {
    const auto next = cells_.lower_bound(at);
    if (next != cells_.end() && next->first == at) {
      at = next->second.end;
      continue;
    }
    const uintptr_t end =
        next == cells_.end() ? bytes.end : std::min(next->first, bytes.end);
    cells_.emplace_hint(next, at, Cell{.end = end});
    at = end;
  }
  return cells_.lower_bound(bytes.begin);
}

void AccessLedger::Allocate(AddressRange bytes, AcceleratorStream home,
                            int64_t time) {
  if (bytes.is_empty()) return;
  ++lives_;
  for (auto cell = Cover(bytes);
       cell != cells_.end() && cell->first < bytes.end; ++cell) {
    cell->second.life = lives_;
    cell->second.allocated = StreamAccess{home, time, "its allocation"};
  }
}

std::optional<Conflict> AccessLedger::FindIn(const Cell& cell, bool is_write,
                                             const VectorClock& done) {
  const auto conflict = [&](const Use& use, bool is_other_write) {
    return Conflict{use.life == cell.life ? Conflict::Kind::kUnordered
                                          : Conflict::Kind::kReuse,
                    use.access, is_other_write};
  };
  const auto is_over = [&](const StreamAccess& access) {
    return done.Covers(access.stream, access.time);
  };
  if (cell.writer && !is_over(cell.writer->access)) {
    return conflict(*cell.writer, /*is_other_write=*/true);
  }
  if (is_write) {
    for (const Use& reader : cell.readers) {
      if (!is_over(reader.access)) {
        return conflict(reader, /*is_other_write=*/false);
      }
    }
  }
  if (cell.allocated && !is_over(*cell.allocated)) {
    return Conflict{Conflict::Kind::kAllocation, *cell.allocated, true};
  }
  return std::nullopt;
}

std::optional<Conflict> AccessLedger::Touch(AddressRange bytes,
                                            const StreamAccess& access,
                                            bool is_write,
                                            const VectorClock& done) {
  if (bytes.is_empty()) return std::nullopt;
  std::optional<Conflict> first;
  auto cell = Cover(bytes);
  Cell written{.end = bytes.end};
  bool is_one_life = true;
  const int64_t life = cell->second.life;
  while (cell != cells_.end() && cell->first < bytes.end) {
    Cell& found = cell->second;
    if (!first) first = FindIn(found, is_write, done);
    is_one_life = is_one_life && found.life == life;
    if (is_write) {
      found.writer = Use{access, found.life};
      found.readers.clear();
      found.allocated.reset();
    } else {
      const auto own = std::find_if(
          found.readers.begin(), found.readers.end(), [&](const Use& use) {
            return use.access.stream == access.stream && use.life == found.life;
          });
      if (own == found.readers.end()) {
        found.readers.push_back(Use{access, found.life});
      } else {
        own->access = access;
      }
    }
    ++cell;
  }
  if (is_write && is_one_life) {  // one history
    written.life = life;
    written.writer = Use{access, life};
    cells_.erase(cells_.lower_bound(bytes.begin), cell);
    cells_.emplace(bytes.begin, std::move(written));
  }
  return first;
}

std::optional<Conflict> AccessLedger::Find(AddressRange bytes, bool is_write,
                                           const VectorClock& done) {
  if (bytes.is_empty()) return std::nullopt;
  for (auto cell = Cover(bytes);
       cell != cells_.end() && cell->first < bytes.end; ++cell) {
    if (auto found = FindIn(cell->second, is_write, done)) return found;
  }
  return std::nullopt;
}

void AccessLedger::Settle(AddressRange bytes, const VectorClock& done) {
  if (bytes.is_empty()) return;
  const auto is_over = [&](const StreamAccess& access) {
    return done.Covers(access.stream, access.time);
  };
  for (auto cell = Cover(bytes);
       cell != cells_.end() && cell->first < bytes.end; ++cell) {
    Cell& found = cell->second;
    if (found.allocated && is_over(*found.allocated)) found.allocated.reset();
    if (found.writer && is_over(found.writer->access)) found.writer.reset();
    std::erase_if(found.readers,
                  [&](const Use& use) { return is_over(use.access); });
  }
}

}  // namespace terrace
