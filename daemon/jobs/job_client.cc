#include "daemon/jobs/job_client.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "daemon/jobs/image/claimed_image.h"
#include "daemon/jobs/news/news_messages.h"

namespace terrace {
namespace {

// Of the threads of one process, each waits for one answer.
constexpr size_t kMostQuestions = 4096;
// Of a group: its pins go in one message.
constexpr size_t kMostWants = 1 << 20;
constexpr absl::Duration kLeastClosePatience = absl::Seconds(1);

}  // namespace

JobClient::JobClient(JobRuntime& made, std::shared_ptr<AnswerOutbox> outbox,
                     int64_t most_in_flight)
    : runtime_(*made.runtime),
      memory_(*made.memory),
      image_(made.image.get()),
      kept_(std::exchange(made.kept, std::nullopt)),
      inbox_(runtime_.mover().inbox()),
      outbox_(std::move(outbox)),
      id_(runtime_.mover().ports().Join(outbox_)),
      intake_(id_, runtime_.clock(), inbox_),
      most_in_flight_(most_in_flight),
      held_pins_(kept_.has_value() &&
                 (!kept_->pins.empty() || image_->file().held_pins())) {
  if (held_pins_ && image_->file().held_pins()) memory_.KeepSpill();
}

absl::Status JobClient::Post(JobRequests requests) {
  const uint64_t before = inbox_->posted();
  for (JobRequest& request : requests.requests) {
    if (std::holds_alternative<ClaimRequest>(request) != kept_.has_value()) {
      return absl::InvalidArgumentError(
          "a process goes on with its runtime by its claim, which it says once "
          "and first");
    }
    TERRACE_RETURN_IF_ERROR(std::visit(
        [this](auto& body) { return Add(std::move(body)); }, request));
  }
  if (requests.posted == 0) return absl::OkStatus();
  // Of what was refused here, or there, the mover hears only that it was.
  if (inbox_->posted() == before) TellMover();
  posted_.Note(inbox_->posted(), requests.posted);
  if (image_ != nullptr) done_.Note(inbox_->posted(), requests.posted);
  return absl::OkStatus();
}

absl::Status JobClient::Restore(const ClaimRequest& claim) {
  const RuntimeImage image =
      ClaimedOf(*std::exchange(kept_, std::nullopt), claim);
  image_->writer().KeepOnly(image);
  for (const PinImage& each : image.pins) pins_.insert(each.token);
  TERRACE_RETURN_IF_ERROR(runtime_.Restore(id_, image));
  held_pins_ = image_->file().held_pins();
  // Whoever has the new token has said so.
  image_->file().ForgetOldToken();
  Learn(image);
  for (const TensorId each : claim.unregistering) {
    if (intake_.SizeOf(each) < 0) ended_before_.insert(each.value);
  }
  const int64_t used = image_->file().used_bytes();
  grown_before_bytes_ = used - std::clamp<int64_t>(claim.memory_bytes, 0, used);
  return absl::OkStatus();
}

void JobClient::Learn(const RuntimeImage& image) {
  std::vector<TensorId> ids;
  std::vector<TensorSpec> specs;
  for (const TensorImage& each : image.tensors) {
    ids.push_back(each.id);
    specs.push_back(each.spec);
  }
  intake_.OnRegistered(ids, specs);
  for (const QueueImage& each : image.queues) {
    if (each.is_of_bytes()) {
      intake_.OnOpenedBytes(each.id);
    } else {
      intake_.OnOpened(each.id, each.stride() - kTensorHeaderBytes, each.slots);
    }
    queues_.try_emplace(each.id, 0);
  }
}

absl::Status JobClient::Pass(UnregisterRequest request) {
  if (ended_before_.erase(request.tensor.value) > 0) {
    outbox_->Deliver(request.id.number, absl::OkStatus());
    return absl::OkStatus();
  }
  return intake_.Post(std::move(request));
}

void JobClient::TellMover() { inbox_->Post(Request(PrefetchRequest())); }

absl::Status JobClient::CheckInFlight(bool is_question) const {
  if (is_question && asked_.size() > kMostQuestions) {
    return absl::ResourceExhaustedError(absl::StrCat(
        asked_.size() - 1, " threads of the process wait for an answer, and ",
        "the limit is ", kMostQuestions));
  }
  if (in_flight_ < most_in_flight_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(in_flight_, " requests are not answered yet, and the limit ",
                   "is ", most_in_flight_));
}

template <typename Body>
absl::Status JobClient::Add(Body request) {
  if constexpr (std::is_same_v<Body, ClaimRequest>) {
    return Restore(request);
  } else if constexpr (requires { request.id; }) {
    return Ask(std::move(request));
  } else if constexpr (requires { request.tag; }) {
    AddGroup(std::move(request));
  } else {
    Pass(std::move(request)).IgnoreError();
  }
  return absl::OkStatus();
}

template <typename Body>
JobClient::About JobClient::AboutOf(const Body& request) {
  if constexpr (std::is_same_v<Body, RegisterRequest>) {
    return request.specs;
  } else if constexpr (std::is_same_v<Body, UnregisterRequest>) {
    return request.tensor;
  } else if constexpr (std::is_same_v<Body, OpenRequest>) {
    return Opening{request.slot_bytes, request.slots};
  } else if constexpr (std::is_same_v<Body, OpenBytesRequest>) {
    return OpeningBytes();
  } else if constexpr (std::is_same_v<Body, CloseRequest>) {
    return Ending();
  } else {
    return std::monostate();
  }
}

template <typename Body>
absl::Status JobClient::Ask(Body request) {
  const uint64_t number = request.id.number;
  const bool is_new =
      number > 0 && asked_.try_emplace(number, AboutOf(request)).second;
  if (!is_new) {
    return absl::InvalidArgumentError(
        absl::StrCat("a request with the number ", number,
                     ", which is none, or another's that has no answer yet"));
  }
  // What tells, or ends, is never too much.
  constexpr bool kIsCounted = !std::is_same_v<Body, StatsRequest> &&
                              !std::is_same_v<Body, StepRequest> &&
                              !std::is_same_v<Body, CloseRequest>;
  absl::Status wrong = CheckInFlight(/*is_question=*/true);
  if (!kIsCounted && asked_.size() <= kMostQuestions) wrong = absl::OkStatus();
  ++in_flight_;
  if (wrong.ok()) wrong = Pass(std::move(request));
  if (!wrong.ok()) {
    outbox_->Deliver(number, std::move(wrong));
    TellMover();
  }
  return absl::OkStatus();
}

// The session waits for the pages meanwhile, and this process with it alone.
absl::Status JobClient::Pass(GrowRequest request) {
  const int64_t before = grown_before_bytes_;
  if (request.bytes > 0 && request.bytes <= before) {
    grown_before_bytes_ -= RoundUp(request.bytes, kBlockBytes);
    outbox_->Deliver(request.id.number, absl::OkStatus());
    return absl::OkStatus();
  }
  ImageFile* const image = image_ == nullptr ? nullptr : &image_->file();
  outbox_->Deliver(request.id.number,
                   memory_.GrowMemory(runtime_, request.bytes, image));
  return absl::OkStatus();
}

// What is forced would leave memory behind for pins that are still held: the
// process keeps its own mapping, and nothing need stay here. A deadline that is
// too short for what the disks have begun would leave that behind, too.
absl::Status JobClient::Pass(CloseRequest request) {
  if (request.force) End();
  Clock& clock = runtime_.clock();
  const uint64_t number = request.id.number;
  request.id.client = id_;
  request.deadline = std::max(clock.FromWall(request.deadline),
                              clock.Now() + kLeastClosePatience);
  if (!inbox_->Post(OwnerRequest(request))) {
    outbox_->Deliver(number, absl::OkStatus());  // it is closed
  }
  return absl::OkStatus();
}

void JobClient::KeepOwnPins(PushBytesRequest* request) const {
  absl::flat_hash_set<uint64_t> kept;
  std::erase_if(request->in_use, [&](uint64_t token) {
    return ClientOfToken(token) == id_ &&
           (!pins_.contains(token) || !kept.insert(token).second);
  });
  request->in_use.shrink_to_fit();
}

template <typename Push>
void JobClient::AddGroup(Push request) {
  const int64_t queue = request.queue;
  const uint64_t tag = request.tag;
  if constexpr (std::is_same_v<Push, PushBytesRequest>) KeepOwnPins(&request);
  absl::Status wrong = CheckInFlight(/*is_question=*/false);
  if (request.wants.size() > kMostWants) {
    wrong = absl::ResourceExhaustedError(
        absl::StrCat("a group of ", request.wants.size(),
                     " tensors; a daemon's has at most ", kMostWants));
  }
  if (wrong.ok()) wrong = intake_.Post(std::move(request));
  const auto found = queues_.find(queue);
  if (found != queues_.end()) {
    ++found->second;
    ++in_flight_;
  }
  if (wrong.ok()) return;
  std::conditional_t<std::is_same_v<Push, PushRequest>, QueueNews, BytesNews>
      news;
  news.queue = queue;
  news.groups.resize(1);
  news.groups.front().tag = tag;
  news.groups.front().grants = std::move(wrong);
  outbox_->Add(std::move(news));
  TellMover();
}

absl::Status JobClient::Pass(EndPinRequest request) {
  const uint64_t token = request.token;
  absl::Status posted = intake_.Post(std::move(request));
  if (posted.ok()) pins_.erase(token);
  return posted;
}

absl::Status JobClient::Pass(CloseQueueRequest request) {
  const auto found = queues_.find(request.queue);
  if (found != queues_.end()) {
    in_flight_ -= found->second;
    queues_.erase(found);
  }
  return intake_.Post(std::move(request));
}

std::vector<JobNews> JobClient::TakeNews() {
  if (outbox_->IsEmpty()) return {};
  // Before what was told meanwhile is taken.
  const uint64_t done = inbox_->heard();
  NewsMessages news;
  for (JobNewsEntry& entry : outbox_->Take()) {
    const bool was_closed = is_closed_;
    std::visit([this](auto& each) { Hear(each); }, entry);
    if (is_closed_ && !was_closed) news.Add(LastStats{LastOfRuntime()});
    news.Add(std::move(entry));
  }
  std::vector<JobNews> messages = news.Take();
  if (image_ == nullptr) return messages;
  const uint64_t processed = done_.ProcessCount(done);
  for (JobNews& each : messages) each.processed = processed;
  return messages;
}

void JobClient::Hear(AnswerNews& news) {
  const auto found = asked_.find(news.number);
  if (found == asked_.end()) return;  // answered twice: the first one counts
  --in_flight_;
  const About about = std::move(found->second);
  asked_.erase(found);
  Learn(about, news.answer);
  if (auto* const stats = std::get_if<Stats>(&news.answer)) {
    runtime_.AddOwnStats(stats);
    // What other users have on the same disks is not this one's to know.
    for (TierStats& each : stats->tiers) each.disk.jobs_elsewhere.clear();
  }
  is_closed_ |= std::holds_alternative<Ending>(about) && inbox_->shut();
}

void JobClient::Learn(const About& about, const Answer& answer) {
  if (const auto* const specs = std::get_if<std::vector<TensorSpec>>(&about)) {
    const auto* const ids = std::get_if<std::vector<TensorId>>(&answer);
    if (ids != nullptr) intake_.OnRegistered(*ids, *specs);
  } else if (const auto* const tensor = std::get_if<TensorId>(&about)) {
    const auto* const status = std::get_if<absl::Status>(&answer);
    if (status != nullptr && status->ok()) intake_.OnUnregistered(*tensor);
  } else if (const auto* const opening = std::get_if<Opening>(&about)) {
    const auto* const opened = std::get_if<OpenedQueue>(&answer);
    if (opened == nullptr) return;
    intake_.OnOpened(opened->id, opening->slot_bytes, opening->slots);
    queues_.try_emplace(opened->id, 0);
  } else if (std::holds_alternative<OpeningBytes>(about)) {
    const auto* const opened = std::get_if<OpenedQueue>(&answer);
    if (opened == nullptr) return;
    intake_.OnOpenedBytes(opened->id);
    queues_.try_emplace(opened->id, 0);
  }
}

void JobClient::Hear(QueueNews& news) {
  HearGroups(news.queue, news.groups);
  news.processed = posted_.ProcessCount(news.processed);
}

void JobClient::HearGroups(int64_t queue,
                           const std::vector<ReadyGroup>& groups) {
  const auto found = queues_.find(queue);
  if (found != queues_.end()) {
    // Those that were refused before the queue was known were never counted.
    const int64_t answered =
        std::min(static_cast<int64_t>(groups.size()), found->second);
    in_flight_ -= answered;
    found->second -= answered;
  }
  for (const ReadyGroup& group : groups) {
    if (!group.grants.ok()) continue;
    for (const Grant& each : *group.grants) pins_.insert(each.token);
  }
}

Stats JobClient::LastOfRuntime() const {
  Stats stats = runtime_.mover().final_stats();
  runtime_.AddOwnStats(&stats);
  for (TierStats& each : stats.tiers) each.disk.jobs_elsewhere.clear();
  return stats;
}

void JobClient::HearUnsent() {
  for (JobNewsEntry& entry : outbox_->Take()) {
    std::visit([this](auto& news) { Hear(news); }, entry);
    const bool is_of_groups = std::holds_alternative<QueueNews>(entry) ||
                              std::holds_alternative<BytesNews>(entry);
    if (!is_of_groups) outbox_->Add(std::move(entry));
  }
}

bool JobClient::End() {
  // A queue that has opened since the last turn is to be closed as well.
  HearUnsent();
  for (const auto& [queue, groups] : queues_) {
    intake_.Post(CloseQueueRequest{queue}).IgnoreError();
    in_flight_ -= groups;
  }
  queues_.clear();
  // Once the mover has heard of that, no more is granted.
  runtime_.GetStats();
  HearUnsent();
  held_pins_ |= !pins_.empty();
  if (held_pins_ && image_ != nullptr) image_->file().NoteHeldPins();
  if (held_pins_) memory_.KeepSpill();
  for (const uint64_t token : std::exchange(pins_, {})) {
    inbox_->EndPin(token, PinEnd::kDiscard);
  }
  return held_pins_;
}

}  // namespace terrace
