// One process of a job as its runtime knows it: a client whose requests come
// over a wire. Each is checked by the intake, and the answers that pass by tell
// the intake what the process has. Nothing that it has is left when it is gone.
//
// A client belongs to one thread, its session's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "daemon/jobs/job_runtime.h"
#include "daemon/jobs/news/answer_outbox.h"
#include "daemon/jobs/news/posted_counts.h"
#include "daemon/wire/job_messages.h"
#include "runtime/local_runtime.h"
#include "runtime/messages/intake.h"

namespace terrace {

class JobClient {
 public:
  // `made` outlives the client; what is kept there waits for the process to
  // claim it. `most_in_flight`: requests that are not answered.
  JobClient(JobRuntime& made, std::shared_ptr<AnswerOutbox> outbox,
            int64_t most_in_flight);
  ClientId id() const { return id_; }

  // Whatever is wrong with one of them is that one's answer. InvalidArgument,
  // and the connection is to end: one with no number, or with that of another
  // that has no answer yet; a claim that is not the first, or where nothing is
  // kept, or anything else before it. DataLoss likewise: what is kept is of no
  // use.
  absl::Status Post(JobRequests requests);
  // What is to be sent now, in messages that are not too long.
  std::vector<JobNews> TakeNews();
  // The runtime is closed, and the process has been told so.
  bool is_closed() const { return is_closed_; }
  // The process has not claimed what is kept for it.
  bool waits_for_claim() const { return kept_.has_value(); }
  // The process is gone, or wants all to end: its queues close and its pins
  // end, so that the runtime can end with all that it has. Whether it held any,
  // then or at an earlier End.
  bool End();

 private:
  // What the answer to a request is about.
  struct Opening {
    int64_t slot_bytes = 0;
    int slots = 0;
  };
  struct OpeningBytes {};
  struct Ending {};
  using About = std::variant<std::monostate, std::vector<TensorSpec>, TensorId,
                             Opening, OpeningBytes, Ending>;

  template <typename Body>
  static About AboutOf(const Body& request);

  // What is a question is answered by its number, a group at its queue, and
  // what tells by nothing: what is wrong there has gone with what it is about.
  template <typename Body>
  absl::Status Add(Body request);
  template <typename Body>
  absl::Status Ask(Body request);
  template <typename Push>
  void AddGroup(Push request);
  // Of pins that it has not, or has named before, nothing is kept while the
  // group waits.
  void KeepOwnPins(PushBytesRequest* request) const;
  template <typename Body>
  absl::Status Pass(Body request) {
    return intake_.Post(std::move(request));
  }
  absl::Status Restore(const ClaimRequest& claim);
  void Learn(const RuntimeImage& image);
  absl::Status Pass(UnregisterRequest request);
  absl::Status Pass(GrowRequest request);
  absl::Status Pass(CloseRequest request);
  absl::Status Pass(EndPinRequest request);
  absl::Status Pass(CloseQueueRequest request);
  // `is_question`: its asker waits for it; such are few.
  absl::Status CheckInFlight(bool is_question) const;
  // As the mover has not heard of the one that was refused.
  void TellMover();
  void Hear(AnswerNews& news);
  void Hear(QueueNews& news);
  void Hear(BytesNews& news) { HearGroups(news.queue, news.groups); }
  template <typename News>
  void Hear(News& /*news*/) {}  // of a queue's end: it tells the process
  void HearGroups(int64_t queue, const std::vector<ReadyGroup>& groups);
  // All that is told meanwhile; that of groups goes no further.
  void HearUnsent();
  void Learn(const About& about, const Answer& answer);
  Stats LastOfRuntime() const;

  LocalRuntime& runtime_;
  JobMemory& memory_;
  JobImage* const image_;  // null: it ends with the daemon
  // Until it is claimed.
  std::optional<RuntimeImage> kept_;
  // What an earlier daemon had done, without an answer: tensors that were to
  // end, and growth.
  absl::flat_hash_set<int64_t> ended_before_;
  int64_t grown_before_bytes_ = 0;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<AnswerOutbox> outbox_;
  const ClientId id_;
  Intake intake_;
  const int64_t most_in_flight_;
  int64_t in_flight_ = 0;  // questions, and groups of open queues
  // By the request's number, until it is answered.
  absl::flat_hash_map<uint64_t, About> asked_;
  absl::flat_hash_map<int64_t, int64_t> queues_;  // with their groups in flight
  absl::flat_hash_set<uint64_t> pins_;
  PostedCounts posted_;
  PostedCounts done_;  // the same, of what outlives the daemon
  bool is_closed_ = false;
  // At an End, or, until they are claimed, at that of an earlier daemon.
  bool held_pins_;
};

}  // namespace terrace
