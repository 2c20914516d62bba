#include "libtorch/hook/window/residency_word.h"

#include "base/check.h"

namespace terrace {

template <typename May, typename Next>
bool ResidencyWord::Change(const May& may, const Next& next) {
  // Sequentially consistent, as a thread that may not waits for news.
  uint32_t word = word_.load();
  while (may(word)) {
    if (word_.compare_exchange_weak(word, next(word))) return true;
  }
  return false;
}

namespace {

// Returns a function that gives a word another state, or life, and leaves the
// rest of it as it is; `unit` is what that field counts in.
template <typename State>
auto To(State next, uint32_t unit = 1) {
  return [next, unit](uint32_t word) {
    return word - word / unit % 8 * unit + static_cast<uint32_t>(next) * unit;
  };
}

}  // namespace

bool ResidencyWord::BeginEvict() {
  return Change(&IsIdle, To(Residency::kEvicting));
}

bool ResidencyWord::Want() {
  word_.fetch_or(kWanted);
  return BeginEvict();
}

bool ResidencyWord::BeginLoad() {
  return Change([](uint32_t word) { return StateOf(word) == Residency::kCold; },
                To(Residency::kLoading));
}

bool ResidencyWord::BeginRetry() {
  return Change(
      [](uint32_t word) { return StateOf(word) == Residency::kFailed; },
      To(Residency::kLoading));
}

bool ResidencyWord::BeginRemove() {
  return Change(
      [](uint32_t word) { return MayLeave(word) && !IsOwned(word); },
      [](uint32_t word) {
        return To(Residency::kEvicting)(To(Life::kLeaving, kLife)(word));
      });
}

void ResidencyWord::Take(bool is_held) {
  do {
    static_cast<void>(Await());
  } while (!Change([](uint32_t word) { return !IsOwned(word); },
                   [is_held](uint32_t word) {
                     return To(Residency::kEvicting)(word) -
                            (is_held ? kPin : 0);
                   }));
}

void ResidencyWord::End(Residency next) {
  const uint32_t word = word_.load(std::memory_order_relaxed);
  TERRACE_CHECK(IsOwned(word) && !IsOwned(static_cast<uint32_t>(next)));
  // No other thread changes an owned state; pins come and go meanwhile.
  word_.fetch_add(static_cast<uint32_t>(next) -
                  static_cast<uint32_t>(StateOf(word)));
  word_.notify_all();
  RoomNews::Tell();
}

Residency ResidencyWord::Await() const {
  uint32_t word = word_.load(std::memory_order_acquire);
  while (IsOwned(word)) {
    word_.wait(word, std::memory_order_acquire);
    word = word_.load(std::memory_order_acquire);
  }
  return StateOf(word);
}

Residency ResidencyWord::AwaitEviction() const {
  uint32_t word = word_.load(std::memory_order_acquire);
  while (StateOf(word) == Residency::kEvicting) {
    word_.wait(word, std::memory_order_acquire);
    word = word_.load(std::memory_order_acquire);
  }
  return StateOf(word);
}

bool ResidencyWord::Stop() {
  return Change([](uint32_t word) { return LifeOf(word) == Life::kManaged; },
                To(Life::kStopping, kLife));
}

bool ResidencyWord::Leave() {
  return Change([](uint32_t word) { return MayLeave(word); },
                To(Life::kLeaving, kLife));
}

void ResidencyWord::SetLife(Life next, bool is_pinned) {
  Change([](uint32_t) { return true; },
         [&](uint32_t word) {
           return To(next, kLife)(word) + (is_pinned ? kPin : 0);
         });
  word_.notify_all();
  // A thread that closes makes tensors stopping itself, and is not told of it.
  if (next == Life::kManaged || next == Life::kGone) RoomNews::Tell();
}

void ResidencyWord::AwaitLife(bool holds_pins) const {
  const auto is_settled = [holds_pins](uint32_t word) {
    const Life life = LifeOf(word);
    return life == Life::kManaged || life == Life::kGone ||
           (holds_pins && life == Life::kStopping);
  };
  uint32_t word = word_.load(std::memory_order_acquire);
  while (!is_settled(word)) {
    word_.wait(word, std::memory_order_acquire);
    word = word_.load(std::memory_order_acquire);
  }
}

}  // namespace terrace
