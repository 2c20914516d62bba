#include "daemon/wire/wake_event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "tiers/system_error.h"

namespace terrace {

absl::StatusOr<WakeEvent> WakeEvent::Make() {
  const ForkPause pause;
  OwnDescriptor event =
      OwnDescriptor::Of(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event.ok()) return WakeEvent(std::move(event));
  return ErrnoError("an event", "cannot be made", errno);
}

// One that is full is set.
void WakeEvent::Set() const {
  const uint64_t one = 1;
  if (write(descriptor_.get(), &one, sizeof(one)) < 0) return;
}

void WakeEvent::Clear() const {
  uint64_t count = 0;
  if (read(descriptor_.get(), &count, sizeof(count)) < 0) return;
}

}  // namespace terrace
