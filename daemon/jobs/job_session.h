// A JobSession is what the daemon has for one process of a job: a connection,
// a runtime, and a thread, terrace-session, that makes the runtime, takes the
// process's requests and sends what these are answered by. Nothing of it is
// shared with others, so that a process that floods or stops holds up itself.
//
// It ends with the connection: the runtime with all that it has is gone, then
// `on_end` is called, on the thread, with how it ended. Unavailable: the
// process has gone, or closed it; Cancelled: by End; else it was refused, or
// did what it must not. The connection ends with the object, so that who waits
// for its end finds what it had given back.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/jobs/job_client.h"
#include "daemon/jobs/job_runtime.h"
#include "daemon/jobs/news/answer_outbox.h"
#include "daemon/jobs/runtime_loops.h"
#include "daemon/jobs/runtime_probe.h"
#include "daemon/watch/loop_pages.h"
#include "daemon/watch/loop_table.h"
#include "daemon/wire/job_messages.h"
#include "daemon/wire/message_channel.h"
#include "daemon/wire/packet_socket.h"
#include "daemon/wire/ring/ring_file.h"
#include "daemon/wire/wake_event.h"
#include "runtime/local_runtime.h"

namespace terrace {

class JobSession {
 public:
  struct Ended {
    absl::Status how;
    bool has_begun = false;  // it had a runtime
    // Its memory is in use: by pins of the process, as long as that lives; by
    // transfers that never end, as long as the daemon does.
    bool process_has_memory = false;
    bool transfers_have_memory = false;
    OwnDescriptor memory;  // of the process's, to be emptied once it has gone
    int64_t charged_bytes = 0;  // for its memory, beside the Hello's
    Stats last;                 // of its runtime
  };
  struct Parts {
    PacketSocket socket;
    Peer peer;
    uint64_t sequence = 0;  // of the Hello
    std::function<absl::StatusOr<JobRuntime>(RuntimeLoops&)> make_runtime;
    std::shared_ptr<LoopTable> loops;    // where its loops are watched
    std::shared_ptr<LoopPages> pages;    // by which the process learns of it
    std::shared_ptr<AnswerBoxes> boxes;  // where its runtime's answers come
    int64_t most_in_flight = INT64_MAX;
    std::function<void(Ended how)> on_end;
  };

  // ResourceExhausted: there is no descriptor or thread, which the process is
  // told.
  static absl::StatusOr<std::unique_ptr<JobSession>> Start(Parts parts);
  // Answers a Hello of that number with the error, which it returns.
  static absl::Status Refuse(PacketSocket& socket, uint64_t sequence,
                             const absl::Status& why);
  // Ends it and waits until it has ended.
  ~JobSession();
  JobSession(const JobSession&) = delete;
  JobSession& operator=(const JobSession&) = delete;

  // By the table of loops.
  int64_t number() const { return session_; }
  // Has it end soon.
  void End();
  // Has it ask its runtime for Stats, or for tensors behind that one; or have
  // what it has in memory leave.
  void AskStats();
  void AskPage(TensorId after);
  void Evict(const EvictionOrder& order);
  // Has its runtime lend so much, once that is there and goes on.
  void Lend(const LendOrder& order);
  // Asks its loop, which asks those of its runtime.
  void AskLoops(absl::Time now);

 private:
  JobSession(Parts parts, WakeEvent event);

  // What it has of its runtime.
  struct Served {
    LocalRuntime& runtime;
    RuntimeLoops& loops;
    RuntimeProbe& probe;
    JobClient& client;
    AnswerOutbox& outbox;  // the client's
  };

  void Run();
  Ended Serve();
  Ended Serve(JobRuntime made, RuntimeLoops& loops, OwnDescriptor page_file);
  absl::Status Refuse(const absl::Status& why) {
    return Refuse(parts_.socket, parts_.sequence, why);
  }
  absl::Status Greet(JobRuntime& made, const JobClient& client,
                     OwnDescriptor page);
  // Whether the process has rung.
  bool Await(MessageChannel& channel, Served& served);
  static bool Rest(MessageChannel& channel, Served& served);
  absl::Status Turn(MessageChannel& channel, Served& served, bool has_rung);
  absl::Status Answer(MessageChannel& channel, JobClient& client);
  // False: there is nothing to hear now.
  absl::StatusOr<bool> Hear(MessageChannel& channel, Served& served);
  absl::Status Post(JobRequests requests, Served& served);
  absl::Status HearLast(MessageChannel& channel, Served& served,
                        const absl::Status& gone);

  Parts parts_;
  const std::shared_ptr<const WakeEvent> event_;
  const int64_t session_;  // by the table of loops
  const WatchedLoop loop_;
  const bool spins_;
  bool has_heard_ = false;  // in the last turn
  std::atomic<bool> ends_ = false;
  std::atomic<bool> asks_stats_ = false;
  std::atomic<bool> asks_page_ = false;
  std::atomic<int64_t> page_after_ = 0;
  AnswerBox<EvictionOrder> eviction_{[this] { event_->Set(); }};
  AnswerBox<LendOrder> lending_{[this] { event_->Set(); }};
  std::optional<RingFile> rings_;
  std::optional<MessageChannel> channel_;  // once it is greeted
  std::thread thread_;                     // last: it uses all of the above
};

}  // namespace terrace
