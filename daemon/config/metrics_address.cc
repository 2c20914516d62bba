#include "daemon/config/metrics_address.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace terrace {
namespace {

constexpr char kUnix[] = "unix:";
constexpr char kIpv4[] = "127.0.0.1:";
constexpr char kIpv6[] = "[::1]:";

}  // namespace

absl::StatusOr<MetricsAddress> ParseMetricsAddress(absl::string_view text) {
  MetricsAddress address;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, kUnix)) {
    address.path = std::string(rest);
    if (!rest.empty() && rest[0] == '/') return address;
  } else {
    address.is_ipv6 = absl::ConsumePrefix(&rest, kIpv6);
    const bool is_loopback =
        address.is_ipv6 || absl::ConsumePrefix(&rest, kIpv4);
    int port = 0;
    if (is_loopback && absl::SimpleAtoi(rest, &port) && port > 0 &&
        port <= UINT16_MAX) {
      address.port = static_cast<uint16_t>(port);
      return address;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "metrics is unix:/PATH, 127.0.0.1:PORT or [::1]:PORT; not ", text));
}

std::string MetricsAddressText(const MetricsAddress& address) {
  if (!address.path.empty()) return absl::StrCat(kUnix, address.path);
  return absl::StrCat(address.is_ipv6 ? kIpv6 : kIpv4, address.port);
}

}  // namespace terrace
