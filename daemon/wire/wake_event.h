// What one thread sets and another one waits for, together with sockets: an
// eventfd(2) of this process alone. Set and Clear do not block. Thread-safe.
#pragma once

#include <utility>

#include "absl/status/statusor.h"
#include "base/process.h"

namespace terrace {

class WakeEvent {
 public:
  // ResourceExhausted: there is no descriptor.
  static absl::StatusOr<WakeEvent> Make();

  void Set() const;
  void Clear() const;
  // Readable once it is set. For poll(2) and epoll(7) alone.
  int descriptor() const { return descriptor_.get(); }

 private:
  explicit WakeEvent(OwnDescriptor descriptor)
      : descriptor_(std::move(descriptor)) {}

  OwnDescriptor descriptor_;
};

}  // namespace terrace
