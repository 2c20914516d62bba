// Where a daemon's metrics are asked for: a Unix socket of mode 0600, or 0660
// of one group, or a port of the loopback. It belongs to one thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/process.h"
#include "daemon/config/metrics_address.h"

namespace terrace {

class MetricsListener {
 public:
  // Errors are those of TakeSocketPath (daemon/wire/socket_address.h); of a
  // port ErrnoError's, which name the address.
  static absl::StatusOr<MetricsListener> Make(const MetricsAddress& address,
                                              std::optional<gid_t> group);
  // A path is removed; its lock ends with the object.
  ~MetricsListener();
  MetricsListener(MetricsListener&&) = default;
  MetricsListener& operator=(MetricsListener&&) = delete;

  // Any user of the host may connect, and a browser's pages too.
  bool is_port() const { return address_.path.empty(); }
  std::string text() const { return MetricsAddressText(address_); }
  int descriptor() const { return descriptor_.get(); }
  // Of a connection that it accepted: the user at a path; at a port nobody says
  // so, and it is one user for all.
  uid_t UserOf(int connection) const;

 private:
  MetricsListener(MetricsAddress address, OwnDescriptor descriptor,
                  OwnDescriptor lock)
      : address_(std::move(address)),
        descriptor_(std::move(descriptor)),
        lock_(std::move(lock)) {}

  MetricsAddress address_;
  OwnDescriptor descriptor_;
  OwnDescriptor lock_;  // of a path
};

}  // namespace terrace
