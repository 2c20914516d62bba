// A ControlServer answers the processes of a host that connect to its daemon.
// Connections are counted against their user's quota, each is served in turn,
// and none can hold up the others: nothing here blocks.
//
// A server belongs to one thread, which waits for descriptor() with others:
//
//   ControlServer server(&users, &log, [&] { return StatusOfAll(); });
//   TERRACE_RETURN_IF_ERROR(server.Listen(std::move(listener)));
//   poll(server.descriptor()) ... server.RunOnce();
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/process.h"
#include "daemon/server/log.h"
#include "daemon/server/session.h"
#include "daemon/server/user_table.h"
#include "daemon/wire/packet_listener.h"

namespace terrace {

class ControlServer {
 public:
  // How the daemon is, without its users.
  using StatusSource = std::function<DaemonStatus()>;

  // All outlive the server. Errors: there is no descriptor to be had.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Create(
      UserTable* users, Log* log, StatusSource status);
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  absl::Status Listen(PacketListener listener);
  // Nobody is connected any more; who is goes on.
  void StopListening();
  // Serves what is ready now, of each connection a few requests.
  void RunOnce();

  // Readable where something is ready. For poll(2) alone.
  int descriptor() const { return events_.get(); }

 private:
  ControlServer(UserTable* users, Log* log, StatusSource status,
                OwnDescriptor events, OwnDescriptor spare);

  absl::Status WatchFor(int fd, bool is_new, bool is_unread);
  void Accept(PacketListener& listener);
  void Admit(PacketSocket socket);
  // Without a descriptor for it who waits is turned away, else it would be
  // ready for ever.
  void TurnAway(PacketListener& listener, const absl::Status& why);
  void Serve(Session& session);
  absl::Status ServeSome(Session& session);
  EnvelopeBody AnswerOf(const Session& session, const Envelope& request) const;
  DaemonStatus StatusFor(const Peer& peer) const;
  void End(int fd);

  UserTable& users_;
  Log& log_;
  const StatusSource status_;
  OwnDescriptor events_;
  OwnDescriptor spare_;
  std::map<int, PacketListener> listeners_;
  std::map<int, Session> sessions_;
};

}  // namespace terrace
