// Where a daemon tells its metrics: a Unix socket, or a port of the loopback,
// which no other host reaches.
//
// Plain values; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace terrace {

struct MetricsAddress {
  std::string path;  // of a Unix socket; "": it is a port
  bool is_ipv6 = false;
  uint16_t port = 0;
};

// "unix:/run/terrace/metrics.sock", "127.0.0.1:9464" or "[::1]:9464".
// InvalidArgument: anything else.
absl::StatusOr<MetricsAddress> ParseMetricsAddress(absl::string_view text);

// As it is parsed.
std::string MetricsAddressText(const MetricsAddress& address);

}  // namespace terrace
