#include "daemon/server/service_manager.h"

#include <systemd/sd-daemon.h>
#include <time.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr int kKeep = 0;  // the environment, for the next word
constexpr int kUnset = 1;

void Tell(const std::string& words) { sd_notify(kKeep, words.c_str()); }

}  // namespace

absl::StatusOr<ServiceManager> ServiceManager::OfEnvironment() {
  ServiceManager manager;
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

void ServiceManager::TellStatus(const std::string& status) const {
  Tell(absl::StrCat("STATUS=", status));
}

void ServiceManager::TellReloading() const {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  Tell(
      absl::StrCat("RELOADING=1\nMONOTONIC_USEC=",
                   absl::ToInt64Microseconds(absl::DurationFromTimespec(now))));
}

void ServiceManager::TellStopping(const std::string& status) const {
  Tell(absl::StrCat("STOPPING=1\nSTATUS=", status));
}

void ServiceManager::TellAlive() const { Tell("WATCHDOG=1"); }

}  // namespace terrace
