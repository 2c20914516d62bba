// Whatever bytes a stranger may send to a daemon, or a daemon to a process: one
// target for each decoder of what comes over a socket. Each says what of its
// promises the bytes have broken; what leads beyond them a sanitiser sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace terrace {

struct WireResult {
  std::string problem;    // "": none
  bool was_read = false;  // else refused
};

struct WireTarget {
  const char* name;
  WireResult (*run)(absl::Span<const uint8_t> input);
  // Inputs that are read, for a search to begin with.
  std::vector<std::vector<uint8_t>> (*seeds)();
};

// By name: "envelope_of_daemon", "envelope_of_client", "fragments", "http".
absl::Span<const WireTarget> WireTargets();

}  // namespace terrace
