#include "daemon/server/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include "base/check.h"

namespace terrace {

void Signals::IgnoreAtFirst() {
  for (const int each : {SIGHUP, SIGPIPE}) signal(each, SIG_IGN);
}

Signals::Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int each : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, each);
  TERRACE_CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
  signal(SIGHUP, SIG_DFL);  // which is blocked now
  const ForkPause pause;
  descriptor_ =
      OwnDescriptor::Of(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  TERRACE_CHECK(descriptor_.ok());
}

std::optional<int> Signals::Next() {
  signalfd_siginfo info = {};
  const ssize_t got = read(descriptor(), &info, sizeof(info));
  if (got != static_cast<ssize_t>(sizeof(info))) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace terrace
