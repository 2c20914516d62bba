#include "daemon/client/greeting.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "base/status_macros.h"
#include "daemon/client/control_client.h"
#include "daemon/wire/ring/ring_file.h"

namespace terrace {
namespace {

constexpr absl::Duration kConnects = absl::Milliseconds(200);

}  // namespace

void GreetingEnd::End() {
  MutexLock lock(mutex_);
  has_ended_ = true;
  // Who waits for an answer there finds that nobody is there any more.
  if (descriptor_ >= 0) shutdown(descriptor_, SHUT_RDWR);
}

bool GreetingEnd::Set(int descriptor) {
  MutexLock lock(mutex_);
  descriptor_ = descriptor;
  return !has_ended_;
}

absl::StatusOr<Greeted> Greet(const std::string& path, Hello hello,
                              absl::Time deadline, GreetingEnd* end) {
  // One that may be given up waits in its caller.
  const absl::Time connected_by =
      end == nullptr ? deadline
                     : std::min(deadline, SystemClock().Now() + kConnects);
  TERRACE_ASSIGN_OR_RETURN(
      PacketSocket socket,
      PacketSocket::Connect(path, connected_by, Descriptors::kTaken));
  if (end != nullptr && !end->Set(socket.descriptor())) {
    return absl::UnavailableError("the greeting is over");
  }
  absl::StatusOr<Answered> asked = AskOver(socket, std::move(hello), deadline);
  if (end != nullptr && !end->Set(-1)) {
    return absl::UnavailableError("the greeting is over");
  }
  TERRACE_ASSIGN_OR_RETURN(Answered answered, std::move(asked));
  const auto* const welcome = std::get_if<Welcome>(&answered.body);
  if (welcome == nullptr || answered.descriptors.size() != 3) {
    return absl::InternalError("the daemon answered with something else");
  }
  socket.RefuseMore();
  TERRACE_ASSIGN_OR_RETURN(SharedMemory rings,
                           SharedMemory::Map(answered.descriptors[1],
                                             kRingFileBytes, kRingFileBytes));
  TERRACE_ASSIGN_OR_RETURN(LoopView loops,
                           LoopView::Map(answered.descriptors[2]));
  return Greeted{.socket = std::move(socket),
                 .welcome = *welcome,
                 .memory = std::move(answered.descriptors[0]),
                 .rings = std::move(rings),
                 .loops = std::move(loops)};
}

}  // namespace terrace
