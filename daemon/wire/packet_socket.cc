#include "daemon/wire/packet_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/poll_timeout.h"
#include "daemon/wire/socket_address.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

// Room for a sender, and for no descriptor: the kernel lets go of what has
// none. To close one here could block, as its file may be a FUSE file system's.
constexpr size_t kControlBytes = CMSG_SPACE(sizeof(ucred));
constexpr size_t kDescriptorBytes =
    CMSG_SPACE(PacketSocket::kMostDescriptors * sizeof(int));
// A longer wait of connect(2) is several; it takes no time at all for all that
// there is.
constexpr absl::Duration kLongestWait = absl::Seconds(60);
constexpr absl::Duration kLeastWait = absl::Milliseconds(1);

bool IsGone(int error) {
  return error == EPIPE || error == ECONNRESET || error == ENOTCONN;
}

// Waits for something to read, or until the deadline; false: it has passed.
bool AwaitReadable(int fd, absl::Time deadline) {
  while (const int timeout_ms = PollTimeout(deadline)) {
    pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&entry, 1, timeout_ms) > 0) return true;
  }
  return false;
}

// Waits while the listener's queue is full, for some time; then errno is
// EAGAIN.
bool ConnectBy(int fd, const SocketAddress& address, absl::Time deadline) {
  const absl::Duration left =
      std::clamp(deadline - SystemClock().Now(), kLeastWait, kLongestWait);
  const timeval timeout = absl::ToTimeval(left);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  return connect(fd, address.get(), address.size()) == 0;
}

// What the kernel says beside a packet of that kind; null: nothing.
const cmsghdr* FindBeside(msghdr& message, int kind) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    const bool is_it =
        header->cmsg_level == SOL_SOCKET && header->cmsg_type == kind;
    if (is_it) return header;
  }
  return nullptr;
}

// Whoever sent the packet.
std::optional<Peer> SenderOf(msghdr& message) {
  const cmsghdr* const header = FindBeside(message, SCM_CREDENTIALS);
  if (header == nullptr) return std::nullopt;
  ucred sender = {};
  std::memcpy(&sender, CMSG_DATA(header), sizeof(sender));
  return Peer{sender.uid, sender.gid, sender.pid};
}

// As many as there was room for.
std::vector<OwnDescriptor> DescriptorsOf(msghdr& message) {
  std::vector<OwnDescriptor> all;
  const cmsghdr* const header = FindBeside(message, SCM_RIGHTS);
  if (header == nullptr) return all;
  const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (size_t i = 0; i < count; ++i) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(fd), sizeof(fd));
    all.push_back(OwnDescriptor::Of(fd));
  }
  return all;
}

}  // namespace

absl::StatusOr<PacketSocket> PacketSocket::Connect(const std::string& path,
                                                   absl::Time deadline,
                                                   Descriptors descriptors) {
  TERRACE_ASSIGN_OR_RETURN(const SocketAddress address,
                           SocketAddress::Of(path));
  OwnDescriptor descriptor = MakePacketSocket(/*blocks=*/true);
  if (!descriptor.ok()) return ErrnoError(path, "cannot make a socket", errno);
  while (!ConnectBy(descriptor.get(), address, deadline)) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error == EAGAIN && SystemClock().Now() < deadline) continue;
    if (error == ECONNREFUSED) {
      return absl::NotFoundError(
          absl::StrCat(path, ": nobody listens: ", ErrnoName(error)));
    }
    if (error != EAGAIN) return ErrnoError(path, "cannot connect", error);
    return absl::DeadlineExceededError(
        absl::StrCat(path, ": too many wait to be connected"));
  }
  return Of(std::move(descriptor), path, descriptors);
}

absl::StatusOr<PacketSocket> PacketSocket::Of(OwnDescriptor descriptor,
                                              std::string name,
                                              Descriptors descriptors) {
  const int fd = descriptor.get();
  const int flags = fcntl(fd, F_GETFL);
  const int on = 1;
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
      setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
    return ErrnoError(name, "a connection cannot be set up", errno);
  }
  PacketSocket socket(std::move(descriptor), std::move(name), descriptors);
  if (descriptors == Descriptors::kRefused) socket.RefuseMore();
  return socket;
}

void PacketSocket::RefuseMore() {
  descriptors_ = Descriptors::kRefused;
  RefuseDescriptors(descriptor());
}

absl::StatusOr<Peer> PacketSocket::peer() const {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(descriptor(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return ErrnoError(name_, "a connection has no peer", errno);
  }
  return Peer{peer.uid, peer.gid, peer.pid};
}

bool PacketSocket::IsPeerOf(gid_t group) const {
  const absl::StatusOr<Peer> own = peer();
  if (own.ok() && own->gid == group) return true;
  std::vector<gid_t> groups;  // beside its own
  socklen_t size = 0;
  // It says how much room it needs.
  while (getsockopt(descriptor(), SOL_SOCKET, SO_PEERGROUPS, groups.data(),
                    &size) != 0) {
    if (errno != ERANGE) return false;
    groups.resize(size / sizeof(gid_t));
  }
  groups.resize(size / sizeof(gid_t));
  return absl::c_linear_search(groups, group);
}

absl::StatusOr<bool> PacketSocket::Send(absl::Span<const std::byte> bytes) {
  ssize_t sent = -1;
  do {
    sent = send(descriptor(), bytes.data(), bytes.size(),
                MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return Sent(sent);
}

absl::StatusOr<bool> PacketSocket::SendWith(
    absl::Span<const std::byte> bytes,
    absl::Span<const OwnDescriptor* const> descriptors) {
  TERRACE_CHECK(descriptors.size() <= kMostDescriptors);
  alignas(cmsghdr) std::array<std::byte, kDescriptorBytes> control = {};
  iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  for (size_t i = 0; i < descriptors.size(); ++i) {
    const int fd = descriptors[i]->get();
    std::memcpy(CMSG_DATA(header) + i * sizeof(fd), &fd, sizeof(fd));
  }
  ssize_t sent = -1;
  do {
    sent = sendmsg(descriptor(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return Sent(sent);
}

absl::StatusOr<bool> PacketSocket::Sent(ssize_t result) const {
  if (result >= 0) return true;
  const int error = errno;
  if (error == EAGAIN) return false;
  if (IsGone(error)) return Gone();
  return ErrnoError(name_, "cannot send", error);
}

absl::StatusOr<std::optional<Packet>> PacketSocket::Receive(size_t most_bytes) {
  // One byte more than a packet has, so that a longer one is seen.
  std::vector<std::byte> bytes(most_bytes + 1);
  const bool takes = descriptors_ == Descriptors::kTaken;
  alignas(cmsghdr) std::array<std::byte, kControlBytes + kDescriptorBytes>
      control;
  iovec part = {bytes.data(), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = takes ? control.size() : kControlBytes;
  // A descriptor is in the list of this process's before a child is made.
  std::optional<ForkPause> pause;
  if (takes) pause.emplace();
  // A reset is told once, and before what was sent until then: a refusal, say,
  // of a peer that did not read what was sent to it.
  ssize_t received = -1;
  do {
    received = recvmsg(descriptor(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && (errno == EINTR || errno == ECONNRESET));
  if (received < 0) {
    const int error = errno;
    if (error == EAGAIN) return std::nullopt;
    if (IsGone(error)) return Gone();
    return ErrnoError(name_, "cannot receive", error);
  }
  std::vector<OwnDescriptor> beside = DescriptorsOf(message);
  pause.reset();
  const bool are_too_many = beside.size() > kMostDescriptors;
  if ((message.msg_flags & MSG_CTRUNC) != 0 || are_too_many) {
    return absl::InvalidArgumentError(
        "a control message with descriptors that are not taken");
  }
  // No message is empty: this is the end.
  if (received == 0) return Gone();
  const bool is_too_long = static_cast<size_t>(received) > most_bytes ||
                           (message.msg_flags & MSG_TRUNC) != 0;
  if (is_too_long) {
    return absl::InvalidArgumentError(
        absl::StrCat("a control message of more than ", most_bytes, " bytes"));
  }
  const std::optional<Peer> sender = SenderOf(message);
  if (!sender.has_value()) {
    return absl::InvalidArgumentError("a control message without a sender");
  }
  bytes.resize(static_cast<size_t>(received));
  return Packet{std::move(bytes), *sender, std::move(beside)};
}

absl::StatusOr<Packet> PacketSocket::Await(absl::Time deadline) {
  while (true) {
    TERRACE_ASSIGN_OR_RETURN(std::optional<Packet> packet, Receive());
    if (packet.has_value()) return *std::move(packet);
    if (!AwaitReadable(descriptor(), deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat(name_, ": nothing came before the deadline"));
    }
  }
}

absl::Status PacketSocket::Gone() const {
  return absl::UnavailableError(
      absl::StrCat(name_, ": the other end of the connection is gone"));
}

std::string PeerText(const Peer& peer) {
  return absl::StrCat("uid ", peer.uid, ", pid ", peer.pid);
}

}  // namespace terrace
