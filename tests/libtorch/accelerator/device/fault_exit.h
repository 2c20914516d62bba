// How a program ends that reaches for closed pages.
#pragma once

#include <csignal>

#include "gtest/gtest.h"

namespace terrace {

// A sanitiser catches the signal, tells it and exits.
inline bool EndsByFault(int status) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return status != 0;
#else
  return testing::KilledBySignal(SIGSEGV)(status);
#endif
}

}  // namespace terrace
