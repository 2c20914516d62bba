#include "runtime/torch/hook/window/residency_word.h"

#include "runtime/base/check.h"

namespace terrace {
namespace {

// From one state to another, whatever the pins are.
uint32_t Changed(uint32_t word, Residency from, Residency to) {
  return word - static_cast<uint32_t>(from) + static_cast<uint32_t>(to);
}

}  // namespace

bool ResidencyWord::BeginEvict() {
  for (const Residency from : {Residency::kResident, Residency::kReady}) {
    uint32_t word = static_cast<uint32_t>(from);  // no pins
    if (word_.compare_exchange_strong(
            word, Changed(word, from, Residency::kEvicting),
            std::memory_order_acquire, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

bool ResidencyWord::BeginLoad() {
  uint32_t word = word_.load(std::memory_order_relaxed);
  while (StateOf(word) == Residency::kCold ||
         StateOf(word) == Residency::kReady) {
    if (word_.compare_exchange_weak(
            word, Changed(word, StateOf(word), Residency::kLoading),
            std::memory_order_acquire, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

bool ResidencyWord::BeginRetry() {
  uint32_t word = word_.load(std::memory_order_relaxed);
  while (StateOf(word) == Residency::kFailed) {
    if (word_.compare_exchange_weak(
            word, Changed(word, Residency::kFailed, Residency::kLoading),
            std::memory_order_acquire, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

bool ResidencyWord::BeginMove() {
  uint32_t word = kPin + static_cast<uint32_t>(Residency::kResident);
  return word_.compare_exchange_strong(
      word, Changed(word, Residency::kResident, Residency::kLoading),
      std::memory_order_acquire, std::memory_order_relaxed);
}

bool ResidencyWord::UnpinToEvict() {
  uint32_t word = word_.load(std::memory_order_relaxed);
  while (true) {
    const bool is_last =
        word == kPin + static_cast<uint32_t>(Residency::kResident);
    const uint32_t next =
        is_last ? static_cast<uint32_t>(Residency::kEvicting) : word - kPin;
    if (word_.compare_exchange_weak(word, next, std::memory_order_acq_rel,
                                    std::memory_order_relaxed)) {
      return is_last;
    }
  }
}

bool ResidencyWord::BeginRemove() {
  uint32_t word = word_.load(std::memory_order_relaxed);
  while (word < kPin && !IsOwned(word)) {
    if (word_.compare_exchange_weak(
            word, Changed(word, StateOf(word), Residency::kEvicting),
            std::memory_order_acquire, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void ResidencyWord::End(Residency next) {
  const uint32_t word = word_.load(std::memory_order_relaxed);
  TERRACE_CHECK(IsOwned(word) && !IsOwned(static_cast<uint32_t>(next)));
  // No other thread changes an owned state; pins come and go meanwhile.
  word_.fetch_add(
      static_cast<uint32_t>(next) - static_cast<uint32_t>(StateOf(word)),
      std::memory_order_release);
  word_.notify_all();
}

Residency ResidencyWord::Await() const {
  uint32_t word = word_.load(std::memory_order_acquire);
  while (IsOwned(word)) {
    word_.wait(word, std::memory_order_acquire);
    word = word_.load(std::memory_order_acquire);
  }
  return StateOf(word);
}

}  // namespace terrace
