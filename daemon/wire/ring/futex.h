// Waiting at a word that several processes have: futex(2). Neither call takes a
// lock or a descriptor, and whatever becomes of the word's page, a wake-up
// returns.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace terrace {

// While the word is `seen`, until a wake-up or for `timeout`; it may end early.
void FutexWait(std::atomic<uint32_t>& word, uint32_t seen,
               absl::Duration timeout);
// One that waits.
void FutexWake(std::atomic<uint32_t>& word);

}  // namespace terrace
