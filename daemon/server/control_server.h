// A ControlServer answers the processes of a host that connect to its daemon.
// Connections are counted against their user's quota, each is served in turn,
// and none can hold up the others: nothing here blocks.
//
// A server belongs to one thread, which waits for descriptor() with others:
//
//   auto server = ControlServer::Create(&users, &log, status_of_all);
//   TERRACE_RETURN_IF_ERROR((*server)->Listen(std::move(listener)));
//   poll(server.descriptor()), until server.next(); server.RunOnce(now);
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "daemon/log/log.h"
#include "daemon/server/job_evictions.h"
#include "daemon/server/job_table.h"
#include "daemon/server/refusals.h"
#include "daemon/server/session.h"
#include "daemon/server/tensor_listings.h"
#include "daemon/server/user_table.h"
#include "daemon/wire/packet_listener.h"

namespace terrace {

class ControlServer {
 public:
  // How the daemon is, without its users.
  using StatusSource = std::function<DaemonStatus()>;

  // All outlive the server. Errors: there is no descriptor to be had.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Create(
      UserTable* users, JobTable* jobs, Log* log, StatusSource status);
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  absl::Status Listen(PacketListener listener);
  // Nobody can connect any more; who is connected goes on, and paths stay
  // locked until the server ends.
  void StopListening();
  // Serves what is ready now, of each connection a few requests. `now` is
  // SystemClock()'s.
  void RunOnce(absl::Time now);
  // Connections of all kinds.
  size_t connections() const { return sessions_.size() + jobs_.connections(); }
  // By what they were refused with.
  const std::map<absl::StatusCode, int64_t>& refusals() const {
    return refusals_.counts();
  }
  // When to call RunOnce at the latest.
  absl::Time next() const {
    return std::min({listens_again_, listings_.next(), evictions_.next(),
                     jobs_.lending().next(), drained_by_});
  }
  // It was told to take no new jobs.
  bool drains() const { return drains_; }

  // Readable where something is ready. For poll(2) alone.
  int descriptor() const { return events_.get(); }

 private:
  // In all; and beyond them for operators, who must get in.
  static constexpr size_t kMostSessions = 4096;
  static constexpr size_t kOperatorsSessions = 16;
  // After somebody could not even be turned away.
  static constexpr absl::Duration kPause = absl::Seconds(1);
  // Between two questions to a job's runtime.
  static constexpr absl::Duration kStatsPause = absl::Milliseconds(100);
  // Of answers, that all connections of a user have beside the one that asks.
  static constexpr size_t kMostUnreadBytes = 1 << 20;

  ControlServer(UserTable* users, JobTable* jobs, Log* log, StatusSource status,
                OwnDescriptor events, OwnDescriptor spare);

  // epoll_ctl(2).
  absl::Status Watch(int what, int fd, uint32_t events);
  void Accept(PacketListener& listener);
  void Admit(PacketSocket socket);
  absl::Status CheckPeer(const Peer& peer, bool is_operator) const;
  // Without a descriptor for it who waits is turned away, else it would be
  // ready for ever.
  void TurnAway(PacketListener& listener, const absl::Status& why);
  void SetPaused(bool is_paused);
  // `ready`: epoll(7)'s events.
  void Serve(Session& session, uint32_t ready);
  absl::Status ServeSome(Session& session);
  // ResourceExhausted: its user lets too much of its answers lie.
  absl::Status CheckUnread(const Session& session) const;
  absl::Status BeginJob(Session& session, const Envelope& request);
  void ReapJobs();
  EnvelopeBody AnswerOf(const Session& session, const Envelope& request);
  // What is answered by and by: a page of tensors, what was evicted.
  absl::Status Wait(Session& session, const Envelope& request);
  void AnswerWaiting();
  void AnswerLate(int fd, const Envelope& answer);
  absl::Status Drain(const Session& session, const DrainRequest& request);
  DaemonStatus StatusFor(const Session& session);
  void End(int fd);

  // One line of the log for each, as far as they are few.
  void NoteRefusal(const Peer& peer, const absl::Status& why);

  UserTable& users_;
  JobTable& jobs_;
  Log& log_;
  Refusals refusals_;
  const StatusSource status_;
  OwnDescriptor events_;
  OwnDescriptor spare_;
  std::map<int, PacketListener> listeners_;
  std::vector<PacketListener> stopped_;
  absl::Time now_ = absl::InfinitePast();  // of RunOnce
  absl::Time listens_again_ = absl::InfiniteFuture();
  std::map<int, Session> sessions_;
  TensorListings listings_;
  JobEvictions evictions_;
  bool drains_ = false;
  absl::Time drained_by_ = absl::InfiniteFuture();  // then jobs end
};

}  // namespace terrace
