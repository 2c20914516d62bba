#include "daemon/watch/loop_table.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

namespace terrace {

std::string LoopText(const LoopName& name) {
  std::array<char, 128> room;
  return {room.data(), WriteLoopText(name, room.data(), room.size())};
}

size_t WriteLoopText(const LoopName& name, char* room, size_t size) {
  if (size == 0) return 0;
  const auto cut = [size](int length) {
    return std::min(static_cast<size_t>(std::max(length, 0)), size - 1);
  };
  size_t used = cut(std::snprintf(room, size, "%s", name.kind));
  if (name.number >= 0) {
    used = cut(static_cast<int>(used) +
               std::snprintf(room + used, size - used, " %d", name.number));
  }
  if (name.process == 0) return used;
  return cut(static_cast<int>(used) +
             std::snprintf(room + used, size - used, " of process %lld",
                           static_cast<long long>(name.process)));
}

LoopTable::~LoopTable() {
  Slot* slot = first_.load();
  while (slot != nullptr) delete std::exchange(slot, slot->next);
}

uint64_t LoopTable::Slot::Read(LoopName* name) const {
  // Each load comes before those below it.
  const uint64_t read = generation.load();
  if (state.load() != kLive) return 0;
  name->kind = kind.load();
  name->process = process.load();
  name->number = number.load();
  name->session = session.load();
  if (name->session == 0) name->session = heartbeat.served();
  return IsStill(read) ? read : 0;
}

bool LoopTable::Slot::IsStill(uint64_t read) const {
  return generation.load() == read;
}

void LoopTable::Slot::Leave() {
  if (users.fetch_sub(1) == 1) state.store(kFree, std::memory_order_release);
}

WatchedLoop LoopTable::Add(LoopName name) {
  Slot* const slot = TakeSlot();
  slot->generation.fetch_add(1);
  slot->users.store(1);
  slot->kind.store(name.kind, std::memory_order_relaxed);
  slot->process.store(name.process, std::memory_order_relaxed);
  slot->number.store(name.number, std::memory_order_relaxed);
  slot->session.store(name.session, std::memory_order_relaxed);
  slot->is_told_stopped.store(false, std::memory_order_relaxed);
  slot->heartbeat.SetAway(false);  // what its last loop did not answer is past
  slot->heartbeat.SetServed(0);
  slot->state.store(kLive, std::memory_order_release);
  size_.fetch_add(1, std::memory_order_relaxed);
  return {shared_from_this(), slot};
}

LoopTable::Slot* LoopTable::TakeSlot() {
  for (Slot* slot = first_.load(std::memory_order_acquire); slot != nullptr;
       slot = slot->next) {
    uint32_t free = kFree;
    if (slot->state.compare_exchange_strong(free, kTaken)) return slot;
  }
  auto* const made = new Slot;
  made->state.store(kTaken, std::memory_order_relaxed);
  made->next = first_.load(std::memory_order_relaxed);
  while (!first_.compare_exchange_weak(
      made->next, made, std::memory_order_release, std::memory_order_relaxed)) {
  }
  return made;
}

absl::Duration LoopTable::SilenceOf(const Slot& slot, absl::Time now) const {
  const absl::Time stood_still =
      absl::FromUnixNanos(stood_still_.load(std::memory_order_relaxed));
  return std::max(absl::ZeroDuration(),
                  std::min(slot.heartbeat.SilenceAt(now), now - stood_still));
}

int64_t LoopTable::CountStopped(absl::Time now) const {
  int64_t count = 0;
  ForEachStopped(now, [&](const LoopName&, absl::Duration) { ++count; });
  return count;
}

void WatchedLoop::End() {
  if (slot_ == nullptr) return;
  table_->size_.fetch_sub(1, std::memory_order_relaxed);
  slot_->state.store(LoopTable::kTaken, std::memory_order_release);
  std::exchange(slot_, nullptr)->Leave();
}

std::shared_ptr<Heartbeat> WatchedLoop::shared_heartbeat() const {
  ++slot_->users;
  return {&slot_->heartbeat,
          [table = table_, slot = slot_](Heartbeat*) { slot->Leave(); }};
}

}  // namespace terrace
