// A Relay is what stands in a process for the mover of a runtime that a host's
// daemon has for it: its thread, terrace-relay, takes what the process's
// threads post to the inbox and sends it to the daemon, and hands the daemon's
// answers to their port.
//
// Once the connection has ended, the inbox is shut with the reason, every
// question is answered by it and every queue is closed: nobody waits for a
// daemon that is gone.
//
// Thread-safe. A forked child has no such thread; there the object is to be
// left behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "daemon/client/queue_sinks.h"
#include "daemon/client/shared_memory.h"
#include "daemon/client/silence.h"
#include "daemon/client/stopped_loops.h"
#include "daemon/client/under_way.h"
#include "daemon/wire/job_messages.h"
#include "daemon/wire/message_channel.h"
#include "daemon/wire/wake_event.h"
#include "runtime/messages/inbox.h"
#include "runtime/messages/port.h"

namespace terrace {

class Relay {
 public:
  // Pins of the memory keep it for as long as they live. A daemon that says
  // nothing for as long as `patience`, though it is asked, counts as gone, and
  // so does one whose `loops` have stopped while something is under way.
  // ResourceExhausted: there is no descriptor or thread.
  static absl::StatusOr<std::unique_ptr<Relay>> Start(PacketSocket socket,
                                                      ClientId client,
                                                      SharedMemory memory,
                                                      StoppedLoops loops,
                                                      absl::Duration patience);
  // Ends the connection.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  const std::shared_ptr<Inbox>& inbox() const { return inbox_; }
  const std::shared_ptr<Port>& port() const { return port_; }
  std::byte* memory() const { return memory_bytes_.data(); }
  // What the daemon said last, which is how it was at a Close.
  Stats last_stats() const;

 private:
  // What a request is answered by, if by no error.
  struct Due {
    enum class Kind : uint8_t {
      kStatus,
      kTensors,
      kQueue,
      kBytes,  // a queue of them
      kStats,
      kClose
    };
    Kind kind = Kind::kStatus;
    size_t tensors = 0;
    absl::Duration takes;  // that the daemon says nothing else for
  };

  Relay(PacketSocket socket, ClientId client, SharedMemory memory,
        StoppedLoops loops, absl::Duration patience, WakeEvent event);

  void Run();
  void Await() const;
  void AwaitEnd();
  absl::Status Turn();
  absl::Status SendRequests();
  absl::Status Send(JobRequests batch);
  void Refuse(const JobRequest& request, const absl::Status& why);
  void NoteDue(const JobRequest& request, absl::Time now);
  absl::Status HearNews();
  // Unavailable: the daemon has said nothing, as of then, for too long, or what
  // is under way does not end.
  absl::Status AskInSilence(absl::Time now);
  absl::Duration Allowed() const;
  absl::Status Hear(AnswerNews& news);
  absl::Status Hear(LastStats& news);
  // Of a queue: groups that have come, or its end.
  template <typename News>
  absl::Status Hear(News& news) {
    if constexpr (requires { news.groups; }) {
      under_way_.EndGroups(news.queue, news.groups);
      return queues_->Hear(news);
    } else {
      under_way_.EndQueue(news.queue);
      queues_->Hear(news);
      return absl::OkStatus();
    }
  }
  absl::Status CheckAnswer(const Due& due, const Answer& answer) const;
  void KeepStats(Stats stats);
  // Nobody asks any more.
  void Shut(const absl::Status& why);
  // All who still wait hear of the end; who asked for it, of how it went.
  void AnswerAll(const absl::Status& why);

  const std::string socket_;               // as errors name it
  std::optional<MessageChannel> channel_;  // until the end
  const std::shared_ptr<WakeEvent> event_;
  absl::Span<std::byte> memory_bytes_;
  std::shared_ptr<Inbox> inbox_;  // with the memory
  std::shared_ptr<Port> port_;
  absl::flat_hash_map<uint64_t, Due> due_;
  UnderWay under_way_;
  std::optional<QueueSinks> queues_;
  Silence silence_;
  StoppedLoops loops_;
  std::atomic<bool> ends_ = false;
  std::optional<absl::Status> closed_;  // by a Close, which ended so
  mutable Mutex mutex_;
  Stats last_stats_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace terrace
