// A Relay is what stands in a process for the mover of a runtime that a host's
// daemon has for it. What the process's threads post they send themselves
// (RequestSender), and of those that wait one hears the daemon's news for all
// (LeadingClock). The relay's own thread, terrace-relay, does what is left:
// what found no room in the ring, news that nobody waits for, the daemon's
// silence, and the end.
//
// Where what the daemon keeps outlives it, a daemon that has gone is waited for
// as long as it may be silent: the next one is told what the process has and
// what was not acknowledged, and goes on with the runtime. What is posted
// meanwhile waits.
//
// Once the connection has ended for good, the inbox is shut with the reason,
// every question is answered by it and every queue is closed: nobody waits for
// a daemon that is gone.
//
// Thread-safe. A forked child has no such thread; there the object is to be
// left behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "daemon/client/dues.h"
#include "daemon/client/greeting.h"
#include "daemon/client/news_reader.h"
#include "daemon/client/request_log.h"
#include "daemon/client/request_sender.h"
#include "daemon/client/shared_memory.h"
#include "daemon/client/stopped_loops.h"
#include "daemon/wire/job_messages.h"
#include "daemon/wire/message_channel.h"
#include "daemon/wire/packet_socket.h"
#include "daemon/wire/wake_event.h"
#include "runtime/messages/inbox.h"
#include "runtime/messages/port.h"
#include "terrace/stats.h"

namespace terrace {

class Relay {
 public:
  // What the daemon gave, and what it was asked.
  struct Parts {
    std::string path;
    Greeted greeted;
    SharedMemory memory;  // pins keep it for as long as they live
    std::string job;
    // What a disk may take; and how long another daemon is waited for.
    absl::Duration io_timeout;
    // A daemon that says nothing for as long, though it is asked, counts as
    // gone.
    absl::Duration patience;
  };

  // ResourceExhausted: there is no descriptor or thread.
  static absl::StatusOr<std::unique_ptr<Relay>> Start(Parts parts);
  // Ends the connection.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  const std::shared_ptr<Inbox>& inbox() const { return inbox_; }
  // Who has it may wait at it by the clock.
  std::shared_ptr<Port> port() const;
  Clock& clock() const;
  std::byte* memory() const { return memory_bytes_.data(); }
  // What the daemon said last, which is how it was at a Close.
  Stats last_stats() const;

 private:
  struct Heard;

  Relay(Parts parts, WakeEvent event);

  void OnPosted();
  void Run();
  // Until the connection ends, which is the answer; OK: by a Close, or by the
  // destructor.
  absl::Status Serve();
  void Await();
  void AwaitEnd();
  // Whether another daemon may have what this one had.
  bool MayGoOn(const absl::Status& how);
  // Not OK: there is none.
  absl::Status GoOn();
  absl::StatusOr<Greeted> AwaitNext();
  absl::Status Turn();
  absl::Status Send();
  absl::Status LookAtLoops(absl::Time now);
  absl::Status LookAtSilence(absl::Time now);

  const std::string path_;  // of the socket
  const absl::Duration io_timeout_;
  const std::shared_ptr<WakeEvent> event_;
  const absl::Span<std::byte> memory_bytes_;
  const uint64_t memory_file_;  // its number
  const std::shared_ptr<Dues> dues_ = std::make_shared<Dues>();
  JobToken token_;                         // zeros: nothing outlives the daemon
  const std::unique_ptr<RequestLog> log_;  // null: likewise
  const std::shared_ptr<Inbox> inbox_;     // with the memory
  const std::shared_ptr<Heard> heard_;     // with the rings
  std::optional<MessageChannel> channel_;  // while there is a daemon
  bool has_lost_ = false;                  // it has gone, as the kernel says
  RequestSender sender_;
  StoppedLoops loops_;
  // When the thread looks at these next, at the latest.
  std::atomic<int64_t> looks_at_ns_ = 0;
  std::atomic<bool> ends_ = false;
  GreetingEnd greeting_end_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace terrace
