// All loops that a daemon's threads turn, each with its heartbeat and a name.
// Who looks takes no lock and allocates nothing: a thread that stopped with a
// lock, or within the allocator, does not hold it up.
//
//   WatchedLoop loop = table->Add({"session", pid});
//   loop.heartbeat().Beat();   // in each turn
//
// Thread-safe. The table lives as long as anyone has it or a heartbeat of it,
// as a thread that is left behind does: what such a one beats is no other
// loop's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/threads/heartbeat.h"

namespace terrace {

struct LoopName {
  const char* kind = "";  // lives for ever: "mover", "session"
  int64_t process = 0;    // of the job's process that it works for; 0: for all
  int number = -1;        // among those of that kind; -1: there is one
  int64_t session = 0;    // whom it serves, by NewSession; 0: nobody, or all
};

// "mover of process 4711", "files 1", "server".
std::string LoopText(const LoopName& name);
// The same into a room of `size` bytes, cut to it, with a zero; returns its
// length.
size_t WriteLoopText(const LoopName& name, char* room, size_t size);

// A loop is watched while this lives. Move-only.
class WatchedLoop;

class LoopTable : public std::enable_shared_from_this<LoopTable> {
 public:
  // A loop that has been asked for so long, and has not answered, has stopped.
  static constexpr absl::Duration kMostSilence = absl::Milliseconds(1300);

  LoopTable() = default;
  ~LoopTable();
  LoopTable(const LoopTable&) = delete;
  LoopTable& operator=(const LoopTable&) = delete;

  WatchedLoop Add(LoopName name);

  // A number for what serves one process of a job.
  int64_t NewSession() { return sessions_.fetch_add(1) + 1; }

  // `visit(const LoopName&, absl::Duration silence)`; `now` is SystemClock()'s.
  template <typename Visit>
  void ForEach(absl::Time now, const Visit& visit) const {
    for (const Slot* slot = first_.load(std::memory_order_acquire);
         slot != nullptr; slot = slot->next) {
      LoopName name;
      const uint64_t generation = slot->Read(&name);
      if (generation == 0) continue;
      const absl::Duration silence = SilenceOf(*slot, now);
      if (slot->IsStill(generation)) visit(name, silence);
    }
  }
  // Of those that have stopped.
  template <typename Visit>
  void ForEachStopped(absl::Time now, const Visit& visit) const {
    ForEach(now, [&](const LoopName& name, absl::Duration silence) {
      if (silence >= kMostSilence) visit(name, silence);
    });
  }
  int64_t size() const { return size_.load(std::memory_order_relaxed); }
  int64_t CountStopped(absl::Time now) const;

  // `say(const LoopName&, bool has_stopped)` of each that has stopped, or turns
  // again, and of which nobody was told so yet.
  template <typename Say>
  void TellChanges(absl::Time now, const Say& say) {
    for (Slot* slot = first_.load(std::memory_order_acquire); slot != nullptr;
         slot = slot->next) {
      LoopName name;
      const uint64_t generation = slot->Read(&name);
      if (generation == 0) continue;
      const bool has_stopped = SilenceOf(*slot, now) >= kMostSilence;
      const bool is_news =
          slot->is_told_stopped.exchange(has_stopped) != has_stopped;
      if (is_news && slot->IsStill(generation)) say(name, has_stopped);
    }
  }

  // The process has not run for some time: what was asked before counts from
  // here.
  void SetStoodStill(absl::Time now) {
    stood_still_.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
  }

 private:
  friend class WatchedLoop;
  enum State : uint32_t { kFree, kTaken, kLive };

  // Never freed before the table, and used again once nobody has its heartbeat.
  struct Slot {
    // Of which loop the name is; 0: it has none.
    uint64_t Read(LoopName* name) const;
    // What was read meanwhile is that loop's.
    bool IsStill(uint64_t generation) const;
    // By one who had the heartbeat.
    void Leave();

    std::atomic<uint32_t> state = kFree;
    std::atomic<uint64_t> generation = 0;
    std::atomic<int> users = 0;  // of the heartbeat
    std::atomic<const char*> kind = nullptr;
    std::atomic<int64_t> process = 0;
    std::atomic<int> number = -1;
    std::atomic<int64_t> session = 0;
    std::atomic<bool> is_told_stopped = false;
    Heartbeat heartbeat;
    Slot* next = nullptr;  // constant once it is in the list
  };

  Slot* TakeSlot();
  absl::Duration SilenceOf(const Slot& slot, absl::Time now) const;

  std::atomic<Slot*> first_ = nullptr;
  std::atomic<int64_t> size_ = 0;
  std::atomic<int64_t> sessions_ = 0;
  std::atomic<int64_t> stood_still_ = 0;  // nanoseconds of SystemClock()
};

class WatchedLoop {
 public:
  WatchedLoop() = default;
  ~WatchedLoop() { End(); }
  WatchedLoop(WatchedLoop&& other) noexcept
      : table_(std::move(other.table_)),
        slot_(std::exchange(other.slot_, nullptr)) {}
  WatchedLoop& operator=(WatchedLoop&& other) noexcept {
    End();
    table_ = std::move(other.table_);
    slot_ = std::exchange(other.slot_, nullptr);
    return *this;
  }

  Heartbeat& heartbeat() const { return slot_->heartbeat; }
  // For a thread that may outlive the watching.
  std::shared_ptr<Heartbeat> shared_heartbeat() const;

 private:
  friend class LoopTable;
  WatchedLoop(std::shared_ptr<LoopTable> table, LoopTable::Slot* slot)
      : table_(std::move(table)), slot_(slot) {}
  void End();

  std::shared_ptr<LoopTable> table_;
  LoopTable::Slot* slot_ = nullptr;
};

}  // namespace terrace
