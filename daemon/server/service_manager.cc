#include "daemon/server/service_manager.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr int kUnset = 1;  // the environment, which children are not to have

}  // namespace

// sd_notify(3) waits until there is room for the word, for ever.
bool ServiceManager::Tell(const std::string& words,
                          const OwnDescriptor* file) const {
  if (address_.empty()) return false;
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
  iovec bytes = {const_cast<char*>(words.data()), words.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_name = &address;
  message.msg_namelen = size;
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (file != nullptr) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = file->get();
    std::memcpy(CMSG_DATA(head), &fd, sizeof(fd));
  }
  return sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

bool ServiceManager::Keep(const std::string& name, const OwnDescriptor& file) {
  return keeps_ && file.ok() &&
         Tell(absl::StrCat("FDSTORE=1\nFDNAME=", name), &file);
}

void ServiceManager::Drop(const std::string& name) {
  if (keeps_) Tell(absl::StrCat("FDSTOREREMOVE=1\nFDNAME=", name));
}

absl::StatusOr<ServiceManager> ServiceManager::OfEnvironment() {
  ServiceManager manager;
  const char* const address = std::getenv("NOTIFY_SOCKET");
  if (address != nullptr) manager.address_ = address;
  unsetenv("NOTIFY_SOCKET");
  const char* const keeps = std::getenv("FDSTORE");
  int most = 0;
  manager.keeps_ = address != nullptr && keeps != nullptr &&
                   absl::SimpleAtoi(keeps, &most) && most > 0;
  unsetenv("FDSTORE");
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
