#include "daemon/metrics/metrics_listener.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/status_macros.h"
#include "daemon/wire/socket_address.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

// Who waits to be connected: a request that comes meanwhile is answered as soon
// as it is. The kernel may have less.
constexpr int kQueue = 1024;

OwnDescriptor MakeStreamSocket(int domain) {
  const ForkPause pause;
  return OwnDescriptor::Of(
      socket(domain, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool BindToLoopback(int fd, const MetricsAddress& address) {
  const int on = 1;
  // One that has just ended leaves connections that are closing.
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) {
    return false;
  }
  if (address.is_ipv6) {
    sockaddr_in6 at = {};
    at.sin6_family = AF_INET6;
    at.sin6_addr = IN6ADDR_LOOPBACK_INIT;
    at.sin6_port = htons(address.port);
    return bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0;
  }
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(address.port);
  return bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0;
}

}  // namespace

absl::StatusOr<MetricsListener> MetricsListener::Make(
    const MetricsAddress& address, std::optional<gid_t> group) {
  const std::string text = MetricsAddressText(address);
  if (address.path.empty()) {
    OwnDescriptor fd = MakeStreamSocket(address.is_ipv6 ? AF_INET6 : AF_INET);
    if (!fd.ok() || !BindToLoopback(fd.get(), address) ||
        listen(fd.get(), kQueue) != 0) {
      return ErrnoError(text, "cannot listen", errno);
    }
    return MetricsListener(address, std::move(fd), OwnDescriptor());
  }
  TERRACE_ASSIGN_OR_RETURN(const SocketAddress at,
                           SocketAddress::Of(address.path));
  TERRACE_ASSIGN_OR_RETURN(OwnDescriptor lock,
                           TakeSocketPath(address.path, at));
  OwnDescriptor fd = MakeStreamSocket(AF_UNIX);
  if (!fd.ok()) return ErrnoError(text, "cannot make a socket", errno);
  TERRACE_RETURN_IF_ERROR(BindToPath(fd.get(), address.path, at, group));
  MetricsListener listener(address, std::move(fd), std::move(lock));
  if (listen(listener.descriptor(), kQueue) == 0) return listener;
  return ErrnoError(text, "cannot listen", errno);
}

uid_t MetricsListener::UserOf(int connection) const {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  const bool is_known =
      !is_port() &&
      getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  return is_known ? peer.uid : 0;
}

MetricsListener::~MetricsListener() {
  if (lock_.ok() && descriptor_.ok()) unlink(address_.path.c_str());
}

}  // namespace terrace
