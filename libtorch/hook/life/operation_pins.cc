#include "libtorch/hook/life/operation_pins.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "libtorch/hook/life/without_python.h"
#include "terrace/machine.h"

namespace terrace {
namespace {

using Storages = OperationPins::Storages;

// Each thread has its own.
constinit thread_local OperationPins* innermost = nullptr;
thread_local Storages kept;

int64_t FootprintOf(const StorageLife& storage) {
  return ResidentBytes(storage.size_bytes());
}

int64_t BytesOf(const Storages& storages) {
  int64_t bytes = 0;
  for (const StorageLife* const each : storages) {
    if (each->needs_bytes()) bytes += FootprintOf(*each);
  }
  return bytes;
}

Storages Distinct(const Storages& storages) {
  Storages distinct;
  absl::flat_hash_set<const StorageLife*> seen;
  for (StorageLife* const each : storages) {
    if (seen.insert(each).second) distinct.push_back(each);
  }
  return distinct;
}

Storages Of(const ByteWindow& window, const Storages& storages) {
  Storages of;
  for (StorageLife* const each : storages) {
    if (&each->window() == &window) of.push_back(each);
  }
  return of;
}

// Returns true for more bytes than fit the Runtime at a time, with some room
// for tensors that are on their way.
bool IsLarge(const WindowRoom& room, int64_t bytes) {
  return bytes >
         room.window_bytes() + (room.most_bytes() - room.window_bytes()) / 2;
}

// Returns true when the storage's bytes are away and are needed. A storage that
// failed counts too, as an operation inside another may take one: its fetch is
// not tried again, and its message ends the operation. A storage that needs no
// bytes is not fetched, as each use throws its message anyway, and a fetch that
// failed now would make it throw for ever.
bool IsToFetch(const StorageLife& storage) {
  return storage.word().state() != Residency::kResident &&
         storage.needs_bytes();
}

}  // namespace

// While a WaitingPins object lives, its storages are told that what has pinned
// them waits. The object ends before the pins do.
class WaitingPins {
 public:
  // Adds all that the thread has pinned by these operations and those around
  // them, and all that it keeps.
  explicit WaitingPins(const OperationPins* pins) {
    for (; pins != nullptr; pins = pins->outer_) {
      for (StorageLife* const each : pins->storages_) Add(*each);
    }
    for (StorageLife* const each : kept) Add(*each);
  }
  explicit WaitingPins(StorageLife& storage) { Add(storage); }
  ~WaitingPins() {
    for (StorageLife* const each : waiting_) each->EndWaiting();
  }
  WaitingPins(const WaitingPins&) = delete;
  WaitingPins& operator=(const WaitingPins&) = delete;

  void Add(StorageLife& storage) {
    waiting_.push_back(&storage);
    storage.BeginWaiting();
  }
  void EndLast(size_t count) {
    for (; count > 0; --count) {
      waiting_.back()->EndWaiting();
      waiting_.pop_back();
    }
  }

 private:
  Storages waiting_;
};

OperationPins::OperationPins() : outer_(std::exchange(innermost, this)) {}

OperationPins::~OperationPins() {
  innermost = outer_;
  while (!storages_.empty() && !storages_.back()->is_spilled()) {
    Unpin(*storages_.back());
    storages_.pop_back();
  }
  if (storages_.empty()) return;
  const WithoutPython without;
  const WaitingPins around(outer_);
  UnpinEach(std::move(storages_));
}

void OperationPins::UnpinEach(Storages storages) {
  // Storages beyond the window come last: the others make room for them to go
  // back to.
  absl::c_partition(storages,
                    [](const auto* each) { return !each->is_spilled(); });
  for (StorageLife* const each : storages) Unpin(*each);
}

void OperationPins::Unpin(StorageLife& storage, bool waits) {
  if (storage.is_parents()) return;  // forked within the operation
  ByteWindow& window = storage.window();
  if (!window.room().over() && !storage.is_spilled()) {
    storage.word().Unpin();
    return;
  }
  const std::shared_ptr<const void> keep = storage.keeper();
  window.EndUse(storage, waits ? RoomPatience::kTurn : RoomPatience::kNone);
}

bool OperationPins::ThreadHoldsPins() {
  if (!kept.empty()) return true;
  for (const OperationPins* pins = innermost; pins != nullptr;
       pins = pins->outer_) {
    if (!pins->empty()) return true;
  }
  return false;
}

void OperationPins::Keep(StorageLife& storage) { kept.push_back(&storage); }

void OperationPins::EndKeeping(StorageLife& storage) {
  kept.erase(absl::c_find(kept, &storage));
  Unpin(storage);
}

void OperationPins::AwaitLife(StorageLife& storage, bool holds_pins) {
  const std::shared_ptr<StorageLife> keep = storage.shared_from_this();
  const WithoutPython without;
  const WaitingPins waiting(innermost);
  storage.word().AwaitLife(holds_pins);
}

bool OperationPins::PinStopping(StorageLife& storage) {
  storages_.pop_back();
  // The caller, which waits for this storage, lets go of the others.
  if (!ThreadHoldsPins()) return false;
  const auto state = storage.word().Pin(/*holds_pins=*/true);
  if (!state.has_value()) return false;
  storages_.push_back(&storage);
  Note(storage, *state);
  return true;
}

// Pins as a thread that had the storage pinned, which a Close lets end.
bool OperationPins::PinAgain(StorageLife& storage) {
  while (storage.word().life() != Life::kGone) {
    if (storage.word().Pin(/*holds_pins=*/true).has_value()) return true;
    AwaitLife(storage, /*holds_pins=*/true);
  }
  return false;
}

Storages OperationPins::LetGo() {
  const Storages distinct = Distinct(storages_);
  UnpinEach(storages_);
  storages_.clear();
  return distinct;
}

OperationPins::Shares OperationPins::SharesOf(Limit limit) const {
  const Storages all = Distinct(storages_);
  Shares shares;
  for (const StorageLife* const each : all) {
    ByteWindow* const window = &each->window();
    const bool is_there = absl::c_any_of(
        shares, [&](const Share& share) { return share.window == window; });
    if (is_there) continue;
    const Storages mine = Of(*window, all);
    const int64_t bytes = BytesOf(mine);
    int64_t may_stay = std::min(bytes, limit(*window, bytes));
    if (mine.size() > 1 && IsLarge(window->room(), bytes)) {
      may_stay = std::min(may_stay, window->room().window_bytes() / 2);
    }
    shares.push_back({window, bytes, may_stay});
  }
  // All operations take turns in one order, so that no two wait for each
  // other's.
  absl::c_sort(shares, [](const Share& a, const Share& b) {
    return std::less<>()(a.window, b.window);
  });
  return shares;
}

bool OperationPins::Bring(absl::string_view operation, Limit limit) {
  const WithoutPython without;
  const Shares shares = SharesOf(limit);
  const bool fits = absl::c_all_of(
      shares, [](const Share& share) { return share.bytes <= share.may_stay; });
  if (fits && TryBring()) return true;
  WaitingPins waiting(outer_);
  const Storages mine = LetGo();
  std::vector<std::unique_ptr<RoomTurn::Holder>> turns;
  for (const Share& share : shares) {
    turns.push_back(
        std::make_unique<RoomTurn::Holder>(share.window->room().waiting()));
  }
  return absl::c_all_of(shares, [&](const Share& share) {
    return BringInTurn(share, Of(*share.window, mine), waiting, operation);
  });
}

bool OperationPins::TryBring() {
  for (StorageLife* const each : storages_) {
    if (!IsToFetch(*each)) continue;
    // Room is for the operation that lacked it first, and the thread that
    // brings a tensor may wait for what this operation has: this fetch waits
    // for neither.
    ByteWindow& window = each->window();
    if (window.room().is_lacking() ||
        IsNoRoom(window.Fetch(*each, ByteWindow::Caller::kOperation,
                              RoomPatience::kNone))) {
      return false;
    }
  }
  return true;
}

bool OperationPins::BringInTurn(const Share& share, const Storages& mine,
                                WaitingPins& waiting,
                                absl::string_view operation) {
  if (share.bytes > share.may_stay) {
    return BringBeyond(share, mine, waiting, operation);
  }
  for (StorageLife* const each : mine) {
    if (!PinAgain(*each)) return false;
    storages_.push_back(each);
    waiting.Add(*each);
  }
  const auto has_room = [&](StorageLife* each) {
    return !IsToFetch(*each) ||
           !IsNoRoom(share.window->Fetch(*each, ByteWindow::Caller::kOperation,
                                         RoomPatience::kTurn));
  };
  if (absl::c_all_of(mine, has_room)) return true;
  // All that hold pins wait. What this operation has makes room for what it
  // needs first; beyond the window it needs room for one tensor at a time.
  waiting.EndLast(mine.size());
  storages_.erase(storages_.end() - static_cast<ptrdiff_t>(mine.size()),
                  storages_.end());
  UnpinEach(mine);
  return BringBeyond({share.window, share.bytes, /*may_stay=*/0}, mine, waiting,
                     operation);
}

bool OperationPins::BringBeyond(const Share& share, const Storages& mine,
                                WaitingPins& waiting,
                                absl::string_view operation) {
  ByteWindow& window = *share.window;
  const WindowRoom& room = window.room();
  // These bytes stay in the window, beside what others have pinned.
  int64_t may_stay = std::clamp<int64_t>(
      room.window_bytes() - window.order().PinnedBytesWith(nullptr), 0,
      share.may_stay);
  int64_t bytes = share.bytes;
  const int64_t available =
      std::min(room.beyond_bytes(), AvailableMemoryBytes());
  const bool has_memory = bytes - may_stay <= available;
  const auto fetch_beyond = [&](StorageLife& each) {
    const bool was_spilled = each.is_spilled();
    const absl::Status fetched = window.FetchBeyond(each, operation);
    // A tensor that another operation has pinned too stays where it is.
    if (!was_spilled && each.is_spilled()) bytes -= FootprintOf(each);
    return fetched;
  };
  for (size_t i = 0; i < mine.size(); ++i) {
    StorageLife& each = *mine[i];
    if (!PinAgain(each)) return false;
    storages_.push_back(&each);
    waiting.Add(each);
    if (!each.needs_bytes()) continue;
    absl::Status fetched = absl::ResourceExhaustedError("no memory");
    if (has_memory && bytes <= may_stay) {
      fetched = window.Fetch(each, ByteWindow::Caller::kOperation,
                             RoomPatience::kTurn);
    } else if (has_memory) {
      fetched = fetch_beyond(each);
    }
    if (has_memory && IsNoRoom(fetched) && may_stay > 0) {
      may_stay = 0;
      for (size_t before = 0; before < i; ++before) {
        if (mine[before]->needs_bytes()) {
          fetch_beyond(*mine[before]).IgnoreError();
        }
      }
      fetched = fetch_beyond(each);
    }
    if (!IsNoRoom(fetched)) continue;
    window.RefuseFetch(
        each, absl::ResourceExhaustedError(absl::StrCat(
                  operation, " takes ", FormatBytes(share.bytes),
                  " at a time, the budget is ", FormatBytes(room.most_bytes()),
                  ", and of memory beside it ", FormatBytes(available),
                  " are available")));
  }
  return true;
}

absl::Status OperationPins::InTurn(ByteWindow& window,
                                   absl::FunctionRef<absl::Status()> work) {
  const WithoutPython without;
  const WaitingPins waiting(innermost);
  const RoomTurn::Holder turn(window.room().waiting());
  return work();
}

absl::Status OperationPins::BringOne(StorageLife& storage,
                                     ByteWindow::Caller caller) {
  ByteWindow& window = storage.window();
  const WaitingPins waiting(storage);
  if (caller == ByteWindow::Caller::kBeside) {
    return window.Fetch(storage, caller, RoomPatience::kBeside);
  }
  const absl::Status fetched =
      window.Fetch(storage, caller, RoomPatience::kNone);
  if (!IsNoRoom(fetched)) return fetched;
  return InTurn(window, [&] {
    return window.Fetch(storage, caller, RoomPatience::kTurn);
  });
}

}  // namespace terrace
