#include "daemon/server/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr int kUnset = 1;  // the environment, which children are not to have

}  // namespace

// sd_notify(3) waits until there is room for the word, for ever.
void ServiceManager::Tell(const std::string& words) const {
  if (address_.empty()) return;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, address_.data(), address_.size());
  // '@' stands for the zero of a name that is none of a file.
  if (address_[0] == '@') address.sun_path[0] = '\0';
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  OwnDescriptor socket;
  {
    const ForkPause pause;
    socket = OwnDescriptor::Of(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  }
  sendto(socket.get(), words.data(), words.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
         reinterpret_cast<const sockaddr*>(&address), size);
}

absl::StatusOr<ServiceManager> ServiceManager::OfEnvironment() {
  ServiceManager manager;
  const char* const address = std::getenv("NOTIFY_SOCKET");
  if (address != nullptr) manager.address_ = address;
  unsetenv("NOTIFY_SOCKET");
  if (manager.address_.size() > sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "NOTIFY_SOCKET=", manager.address_, ": it is too long for a socket"));
  }
  char** names = nullptr;
  const int count = sd_listen_fds_with_names(kUnset, &names);
  if (count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the sockets of LISTEN_FDS cannot be had: ", ErrnoName(-count)));
  }
  for (int i = 0; i < count; ++i) {
    manager.inherited_.push_back(
        {names[i], OwnDescriptor::Of(SD_LISTEN_FDS_START + i)});
    std::free(names[i]);
  }
  std::free(names);
  uint64_t microseconds = 0;
  if (sd_watchdog_enabled(kUnset, &microseconds) > 0) {
    manager.patience_ = absl::Microseconds(microseconds);
  }
  return manager;
}

void ServiceManager::TellReady(const std::string& status) const {
  Tell(absl::StrCat("READY=1\nSTATUS=", status));
}

void ServiceManager::TellReloading() const {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  Tell(
      absl::StrCat("RELOADING=1\nMONOTONIC_USEC=",
                   absl::ToInt64Microseconds(absl::DurationFromTimespec(now))));
}

void ServiceManager::TellStopping(const std::string& status,
                                  absl::Duration most) const {
  Tell(absl::StrCat("STOPPING=1\nSTATUS=", status,
                    "\nEXTEND_TIMEOUT_USEC=", absl::ToInt64Microseconds(most)));
}

void ServiceManager::TellAlive() const { Tell("WATCHDOG=1"); }

}  // namespace terrace
