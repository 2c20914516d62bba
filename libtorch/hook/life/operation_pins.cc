#include "libtorch/hook/life/operation_pins.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "base/check.h"
#include "libtorch/hook/life/without_python.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

using Storages = OperationPins::Storages;

// An operation of more storages may tell a use more than once, which costs less
// than to look for each.
constexpr size_t kMostLookedAt = 32;

// Each thread has its own.
constinit thread_local OperationPins* innermost = nullptr;
thread_local Storages kept;

int64_t FootprintOf(const StorageLife& storage) {
  return ResidentBytes(storage.size_bytes());
}

Storages Distinct(const Storages& storages) {
  Storages distinct;
  absl::flat_hash_set<const StorageLife*> seen;
  for (StorageLife* const each : storages) {
    if (seen.insert(each).second) distinct.push_back(each);
  }
  return distinct;
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

OperationPins::Waiting::Waiting(const ByteWindow* besides) {
  for (StorageLife* const each : PinnedByThread()) {
    if (&each->window() == besides) continue;
    waiting_.push_back(each);
    each->window().BeginWaiting(*each);
  }
}

OperationPins::Waiting::~Waiting() {
  for (StorageLife* const each : waiting_) each->window().EndWaiting(*each);
}

OperationPins::OperationPins() : outer_(std::exchange(innermost, this)) {}

OperationPins::~OperationPins() {
  innermost = outer_;
  for (; !storages_.empty(); storages_.pop_back()) Unpin(*storages_.back());
}

void OperationPins::Unpin(StorageLife& storage) {
  if (storage.is_parents()) return;  // forked within the operation
  storage.window().EndUse(storage);
}

Storages OperationPins::PinnedByThread() {
  Storages all = kept;
  for (const OperationPins* pins = innermost; pins != nullptr;
       pins = pins->outer_) {
    all.insert(all.end(), pins->storages_.begin(), pins->storages_.end());
  }
  const auto is_parents = [](const auto* each) { return each->is_parents(); };
  all.erase(std::remove_if(all.begin(), all.end(), is_parents), all.end());
  return all;
}

ByteWindow::Tensors OperationPins::PinnedIn(const ByteWindow& window) {
  ByteWindow::Tensors in;
  for (StorageLife* const each : PinnedByThread()) {
    if (&each->window() == &window) in.push_back(each);
  }
  return in;
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
  const auto found = absl::c_find(kept, &storage);
  TERRACE_CHECK(found != kept.end());  // it is this thread's
  kept.erase(found);
  Unpin(storage);
}

void OperationPins::AwaitLife(StorageLife& storage, bool holds_pins) {
  const std::shared_ptr<StorageLife> keep = storage.shared_from_this();
  const WithoutPython without;
  const Waiting waiting;
  storage.word().AwaitLife(holds_pins);
}

bool OperationPins::IsTaken(const StorageLife& storage) const {
  const auto has = [&](const Storages& storages, size_t besides) {
    if (storages.size() > kMostLookedAt) return false;
    const auto end = storages.end() - static_cast<ptrdiff_t>(besides);
    return std::find(storages.begin(), end, &storage) != end;
  };
  if (has(storages_, 1)) return true;
  for (const OperationPins* pins = outer_; pins != nullptr;
       pins = pins->outer_) {
    if (has(pins->storages_, 0)) return true;
  }
  return false;
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

OperationPins::Shares OperationPins::shares() const {
  Shares shares;
  for (const StorageLife* const each : Distinct(storages_)) {
    if (!each->needs_bytes()) continue;
    auto found = absl::c_find_if(shares, [&](const Share& share) {
      return share.window == &each->window();
    });
    if (found == shares.end()) {
      found = shares.insert(found, {&each->window(), 0});
    }
    found->bytes += FootprintOf(*each);
  }
  return shares;
}

void OperationPins::Bring(absl::string_view operation) {
  const WithoutPython without;
  for (const Share& share : shares()) {
    ByteWindow& window = *share.window;
    ByteWindow::Tensors away;
    for (StorageLife* const each : Distinct(storages_)) {
      if (&each->window() == &window && IsToFetch(*each)) away.push_back(each);
    }
    if (away.empty()) continue;
    const Waiting elsewhere(&window);
    const ByteWindow::Tensors in_use = PinnedIn(window);
    // A tensor that does not come tells the operation, which goes on.
    window
        .Fetch(away, {.operation = operation,
                      .operation_bytes = share.bytes,
                      .in_use = in_use})
        .IgnoreError();
  }
}

absl::Status OperationPins::BringOne(StorageLife& storage,
                                     ByteWindow::Caller caller) {
  const WithoutPython without;
  ByteWindow& window = storage.window();
  if (storage.word().state() == Residency::kResident) {
    window.NoteUse(storage, caller);
    return absl::OkStatus();
  }
  const Waiting elsewhere(&window);
  const ByteWindow::Tensors in_use = PinnedIn(window);
  return window.Fetch({&storage}, {.caller = caller, .in_use = in_use});
}

absl::Status OperationPins::Fill(StorageLife& storage) {
  const WithoutPython without;
  ByteWindow& window = storage.window();
  const Waiting elsewhere(&window);
  const ByteWindow::Tensors in_use = PinnedIn(window);
  return window.Fill(storage, storage.data(), {.in_use = in_use});
}

}  // namespace terrace
