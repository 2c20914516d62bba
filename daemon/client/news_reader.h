// How the daemon's answers get to the process's port: whichever thread hears
// them first takes what there is out of the ring, checks it and hands it over,
// whoever waits for it.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "daemon/client/dues.h"
#include "daemon/client/queue_sinks.h"
#include "daemon/client/request_log.h"
#include "daemon/client/silence.h"
#include "daemon/wire/job_messages.h"
#include "daemon/wire/message_channel.h"
#include "daemon/wire/wake_event.h"
#include "runtime/messages/inbox.h"
#include "runtime/messages/port.h"

namespace terrace {

class NewsReader {
 public:
  struct Parts {
    Port* port = nullptr;          // outlives it
    std::shared_ptr<Inbox> inbox;  // shut by a Close, or at the end
    std::shared_ptr<Dues> dues;    // what was sent
    RequestLog* log = nullptr;  // outlives it; null: nothing outlives a daemon
    std::shared_ptr<const WakeEvent> relay;  // set where it has to act
    int64_t memory_bytes = 0;                // of pins
    absl::Duration patience;                 // with a daemon that says nothing
  };

  explicit NewsReader(Parts parts);

  // From here until Pause or End: what comes there.
  void Begin(MessageChannel& channel);
  // The daemon has gone, and another is waited for.
  void Pause();
  // Hands over all that has come. What is not OK ends the connection, and stays
  // so: the daemon's refusal; Internal, an answer that is none; what the
  // channel cannot receive.
  absl::Status Hear() { return Hear(INT_MAX); }
  // The same of a few messages: the relay has the rest.
  absl::Status HearSome() { return Hear(kSome); }
  // Whether more may come: not before Begin, nor after an error, a Close, a
  // Pause or End.
  bool hears() const { return hears_; }
  // By a Close, which ended so.
  std::optional<absl::Status> closed() const;
  // Of the channel.
  bool RestForNews();

  // The request is answered by that: it could not be sent.
  void Refuse(const JobRequest& request, const absl::Status& why);
  // Nobody asks any more, and all who still wait hear of the end; who asked for
  // it, of how it went.
  void End(const absl::Status& why);

  // Of a daemon that says nothing. Unavailable: for too long, as of then.
  enum class Look : uint8_t { kWait, kAsk };
  absl::StatusOr<Look> LookAtSilence(absl::Time now);
  absl::Time NextLook() const;

  // What the daemon said last, which is how it was at a Close.
  Stats last_stats() const;

 private:
  static constexpr int kSome = 16;

  absl::Status Hear(int messages);
  // False: there may be more.
  absl::StatusOr<bool> HearAll(int messages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Hear(Envelope& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Hear(AnswerNews& news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Hear(LastStats& news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a queue: groups, or its end.
  template <typename News>
  absl::Status Hear(News& news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if constexpr (requires { news.groups; }) {
      parts_.dues->EndGroups(news.queue, news.groups);
      if (parts_.log != nullptr) {
        parts_.log->OnGroups(news.queue, news.groups);
        if constexpr (requires { news.recalls; }) {
          parts_.log->OnRecalls(news.recalls);
        }
      }
      return queues_.Hear(news);
    } else {
      parts_.dues->EndQueue(news.queue);
      queues_.Hear(news);
      return absl::OkStatus();
    }
  }
  absl::Status CheckAnswer(const Due& due, const Answer& answer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Shut(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Parts parts_;
  std::atomic<bool> hears_ = false;  // written with the mutex held
  mutable Mutex mutex_;
  MessageChannel* channel_ ABSL_GUARDED_BY(mutex_) = nullptr;
  QueueSinks queues_ ABSL_GUARDED_BY(mutex_);
  Silence silence_ ABSL_GUARDED_BY(mutex_);
  absl::Status how_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> closed_ ABSL_GUARDED_BY(mutex_);
  Stats last_stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
