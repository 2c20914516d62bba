#include "runtime/torch/hook/life/operation_pins.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/bytes.h"
#include "runtime/torch/hook/life/waits.h"
#include "terrace/machine.h"

namespace terrace {
namespace {

// Of one thread.
struct ThreadPins {
  OperationPins* innermost = nullptr;
  OperationPins::Storages kept;
};

thread_local ThreadPins thread_pins;

int64_t FootprintOf(const StorageLife& storage) {
  return ResidentBytes(storage.size_bytes());
}

int64_t BytesOf(const OperationPins::Storages& storages) {
  int64_t bytes = 0;
  for (const StorageLife* const each : storages) bytes += FootprintOf(*each);
  return bytes;
}

// More than fits the Runtime at a time, with some room for what is on its way.
bool IsLarge(const WindowRoom& room, int64_t bytes) {
  return bytes >
         room.window_bytes() + (room.most_bytes() - room.window_bytes()) / 2;
}

bool IsBefore(const ByteWindow* a, const ByteWindow* b) {
  return std::less<const ByteWindow*>()(a, b);
}

}  // namespace

// That what they are pinned by waits.
class WaitingPins {
 public:
  // All that the thread has pinned.
  WaitingPins() {
    for (auto* pins = thread_pins.innermost; pins != nullptr;
         pins = pins->outer_) {
      Add(pins->storages_);
      Add(pins->beyond_);
    }
    Add(thread_pins.kept);
  }
  explicit WaitingPins(const OperationPins::Storages& storages) {
    Add(storages);
  }
  ~WaitingPins() {
    for (StorageLife* const each : waiting_) each->EndWaiting();
  }
  WaitingPins(const WaitingPins&) = delete;
  WaitingPins& operator=(const WaitingPins&) = delete;

 private:
  void Add(const OperationPins::Storages& storages) {
    for (StorageLife* const each : storages) {
      waiting_.push_back(each);
      each->BeginWaiting();
    }
  }

  OperationPins::Storages waiting_;
};

OperationPins::OperationPins()
    : outer_(std::exchange(thread_pins.innermost, this)) {}

OperationPins::~OperationPins() {
  UnpinAll();
  thread_pins.innermost = outer_;
}

void OperationPins::UnpinAll() {
  for (StorageLife* const each : storages_) Unpin(*each);
  storages_.clear();
  if (beyond_.empty()) return;
  // What is beyond the window goes back where the others have made room.
  const Storages beyond = std::exchange(beyond_, {});
  const WithoutPython without;
  const WaitingPins waiting;  // what is around this operation
  for (StorageLife* const each : beyond) Unpin(*each);
}

void OperationPins::Unpin(StorageLife& storage) {
  ByteWindow& window = storage.window();
  std::shared_ptr<const void> keep;
  const bool ends_more = window.room().over() || storage.is_spilled();
  if (ends_more) keep = storage.keeper();
  window.EndUse(storage);
}

bool OperationPins::ThreadHoldsPins() {
  if (!thread_pins.kept.empty()) return true;
  for (const OperationPins* pins = thread_pins.innermost; pins != nullptr;
       pins = pins->outer_) {
    if (!pins->empty()) return true;
  }
  return false;
}

void OperationPins::Keep(StorageLife& storage) {
  thread_pins.kept.push_back(&storage);
}

void OperationPins::EndKeeping(StorageLife& storage) {
  const auto found = absl::c_find(thread_pins.kept, &storage);
  thread_pins.kept.erase(found);
  Unpin(storage);
}

bool OperationPins::Pin(StorageLife& storage) {
  storages_.push_back(&storage);
  auto state = storage.word().Pin();
  if (!state.has_value()) {
    storages_.pop_back();
    // The others are let go of by who waits for this one.
    if (!ThreadHoldsPins()) return false;
    state = storage.word().Pin(/*holds_pins=*/true);
    if (!state.has_value()) return false;
    storages_.push_back(&storage);
  }
  if (*state != Residency::kResident) is_away_ = true;
  storage.window().order().Note(storage);
  return true;
}

std::optional<Residency> OperationPins::PinAgain(StorageLife& storage) {
  while (storage.word().life() != Life::kGone) {
    const auto state = storage.word().Pin(/*holds_pins=*/true);
    if (state.has_value()) return state;
    AwaitLife(storage, /*holds_pins=*/true);
  }
  return std::nullopt;
}

OperationPins::Storages OperationPins::Of(const ByteWindow& window) const {
  Storages distinct;
  for (StorageLife* const each : storages_) {
    if (&each->window() != &window || !each->needs_bytes()) continue;
    if (absl::c_linear_search(distinct, each)) continue;
    distinct.push_back(each);
  }
  return distinct;
}

OperationPins::Storages OperationPins::LetGo(const ByteWindow& window) {
  Storages distinct;
  const auto lets_go = [&](StorageLife* each) {
    if (&each->window() != &window) return false;
    if (!absl::c_linear_search(distinct, each)) distinct.push_back(each);
    Unpin(*each);
    return true;
  };
  storages_.erase(std::remove_if(storages_.begin(), storages_.end(), lets_go),
                  storages_.end());
  return distinct;
}

void OperationPins::Bring(absl::string_view operation) {
  const WithoutPython without;
  absl::InlinedVector<ByteWindow*, 2> windows;
  bool is_large = false;
  for (const StorageLife* const each : storages_) {
    ByteWindow& window = each->window();
    if (absl::c_linear_search(windows, &window)) continue;
    windows.push_back(&window);
    is_large = is_large || IsLarge(window.room(), BytesOf(Of(window)));
  }
  if (!is_large && TryBring()) return;
  // In one order, so that no two operations wait for each other's.
  absl::c_sort(windows, IsBefore);
  Storages all;
  for (const ByteWindow* const window : windows) {
    const Storages let_go = LetGo(*window);
    all.insert(all.end(), let_go.begin(), let_go.end());
  }
  const WaitingPins waiting;  // what is around this operation
  std::vector<std::unique_ptr<RoomTurn::Holder>> turns;
  for (ByteWindow* const window : windows) {
    turns.push_back(
        std::make_unique<RoomTurn::Holder>(window->room().waiting()));
  }
  for (StorageLife* const each : all) {
    if (PinAgain(*each).has_value()) storages_.push_back(each);
  }
  for (ByteWindow* const window : windows) BringInTurn(*window, operation);
}

bool OperationPins::TryBring() {
  for (StorageLife* const each : storages_) {
    // An operation inside another may take what failed there: it is not tried
    // again. Its message is what ends the operation. So is that of what needs
    // no bytes, as each use throws: one that failed now would do so for ever.
    if (each->word().state() == Residency::kResident || !each->needs_bytes()) {
      continue;
    }
    // Who brings it may wait for what this one has.
    if (IsNoRoom(each->window().Fetch(*each, ByteWindow::Caller::kOperation,
                                      RoomPatience::kNone))) {
      return false;
    }
  }
  return true;
}

void OperationPins::BringInTurn(ByteWindow& window,
                                absl::string_view operation) {
  bool has_room = !IsLarge(window.room(), BytesOf(Of(window)));
  if (has_room) {
    const WaitingPins waiting(storages_);
    for (StorageLife* const each : Of(window)) {
      if (each->word().state() == Residency::kResident) continue;
      const absl::Status fetched = window.Fetch(
          *each, ByteWindow::Caller::kOperation, RoomPatience::kTurn);
      has_room = !IsNoRoom(fetched);
      if (!has_room) break;
    }
  }
  // All that hold pins wait.
  if (!has_room) BringBeyond(window, operation);
}

void OperationPins::BringBeyond(ByteWindow& window,
                                absl::string_view operation) {
  const WindowRoom& room = window.room();
  Storages mine = Of(window);
  int64_t bytes = BytesOf(mine);
  // What it has pinned makes room for what it needs first. Its arguments keep
  // their storages alive.
  mine = LetGo(window);
  const int64_t stays = std::max<int64_t>(
      0, room.window_bytes() / 2 - window.order().PinnedBytesWith(nullptr));
  const int64_t available =
      std::min(room.beyond_bytes(), AvailableMemoryBytes());
  const bool has_memory = bytes - stays <= available;
  Storages waiting;
  for (StorageLife* const each : mine) {
    const auto state = PinAgain(*each);
    if (!state.has_value()) continue;
    each->BeginWaiting();
    waiting.push_back(each);
    const bool goes_beyond = each->needs_bytes() && has_memory && bytes > stays;
    (goes_beyond ? beyond_ : storages_).push_back(each);
    if (!each->needs_bytes()) continue;
    absl::Status fetched;
    if (goes_beyond) {
      fetched = window.FetchBeyond(*each, operation);
      // What another has pinned too stays where it is.
      if (each->is_spilled()) bytes -= FootprintOf(*each);
    } else if (has_memory && *state != Residency::kResident) {
      fetched = window.Fetch(*each, ByteWindow::Caller::kOperation,
                             RoomPatience::kTurn);
    }
    if (has_memory && !IsNoRoom(fetched)) continue;
    window.RefuseFetch(
        *each, absl::ResourceExhaustedError(absl::StrCat(
                   operation, " takes ", FormatBytes(BytesOf(mine)),
                   " at a time, the budget is ", FormatBytes(room.most_bytes()),
                   ", and of memory beside it ", FormatBytes(available),
                   " are available")));
  }
  for (StorageLife* const each : waiting) each->EndWaiting();
}

absl::Status OperationPins::InTurn(ByteWindow& window,
                                   absl::FunctionRef<absl::Status()> work) {
  const WithoutPython without;
  const WaitingPins waiting;
  const RoomTurn::Holder turn(window.room().waiting());
  return work();
}

absl::Status OperationPins::BringOne(StorageLife& storage,
                                     ByteWindow::Caller caller) {
  ByteWindow& window = storage.window();
  const WaitingPins waiting({&storage});
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
