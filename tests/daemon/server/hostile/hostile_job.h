// A process of a job that a test plays by its bare messages, and what is to
// hold whatever it does: others are undisturbed, and nothing is left of it.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "daemon/client/shared_memory.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/fragments.h"
#include "daemon/wire/packet_socket.h"
#include "daemon/wire/ring/packet_ring.h"
#include "daemon/wire/ring/ring_file.h"
#include "gmock/gmock.h"
#include "terrace/version.h"
#include "tests/daemon/server/connected_job.h"

namespace terrace {

inline constexpr int64_t kHostileMemory = 1 << 20;

// A process of a job by its bare messages.
class RawJob {
 public:
  explicit RawJob(const RunningDaemon& daemon,
                  int64_t memory_bytes = kHostileMemory,
                  int64_t growth_bytes = 0)
      : RawJob(daemon, Hello{.version = kVersion,
                             .memory_bytes = memory_bytes,
                             .growth_bytes = growth_bytes}) {}
  // One that goes on with what it had.
  RawJob(const RunningDaemon& daemon, const JobToken& token)
      : RawJob(daemon, Hello{.version = kVersion, .token = token}) {}
  RawJob(const RunningDaemon& daemon, const Hello& asked)
      : socket_(*PacketSocket::Connect(daemon.socket(), Soon(),
                                       Descriptors::kTaken)) {
    const std::vector<std::byte> hello =
        *Encode({.sequence = 1, .body = asked});
    EXPECT_TRUE(*socket_.Send(hello));
    auto packet = socket_.Await(Soon());
    EXPECT_TRUE(packet.ok()) << packet.status();
    EXPECT_EQ(packet->descriptors.size(), 3u);
    memory_ = std::move(packet->descriptors.at(0));
    ring_file_ = std::move(packet->descriptors.at(1));
    rings_.emplace(*SharedMemory::Map(ring_file_, kRingFileBytes, 0));
    writer_.emplace(rings().requests);
    reader_.emplace(rings().news);
    page_ = std::move(packet->descriptors.at(2));
    welcome_ = std::get<Welcome>(Decode(packet->bytes)->body);
  }

  PacketSocket& socket() { return socket_; }
  const OwnDescriptor& memory() const { return memory_; }
  const OwnDescriptor& ring_file() const { return ring_file_; }
  Rings rings() const { return Rings::In(rings_->bytes()); }
  const OwnDescriptor& page() const { return page_; }
  const Welcome& welcome() const { return welcome_; }
  ClientId client() const { return welcome_.client; }
  int64_t file_bytes() const { return welcome_.file_bytes; }

  void Send(const Envelope& envelope) {
    const std::vector<std::vector<std::byte>> packets = *PacketsOf(envelope);
    for (const auto& packet : packets) EXPECT_TRUE(Write(packet));
  }
  // False: its ring has no room.
  bool Write(absl::Span<const std::byte> packet) {
    if (!*writer_->Write(packet)) return false;
    Ring();
    return true;
  }
  // Whether the daemon is there.
  bool Ring() {
    const std::byte bell{1};
    return socket_.Send({&bell, 1}).ok();
  }
  void Ask(JobRequest request) {
    JobRequests requests;
    requests.posted = ++posted_;
    requests.requests.push_back(std::move(request));
    Send({.body = std::move(requests)});
  }
  // The next entry of what comes.
  absl::StatusOr<JobNewsEntry> Hear() {
    while (heard_.empty()) {
      absl::StatusOr<std::vector<std::byte>> packet = Read();
      if (!packet.ok()) return packet.status();
      Envelope message;
      const absl::StatusOr<bool> is_whole = pieces_.Add(*packet, &message);
      if (!is_whole.ok()) return is_whole.status();
      if (!*is_whole) continue;
      if (auto* const refusal = std::get_if<Refusal>(&message.body)) {
        return refusal->why;
      }
      for (auto& each : std::get<JobNews>(message.body).entries) {
        heard_.push_back(std::move(each));
      }
    }
    JobNewsEntry first = std::move(heard_.front());
    heard_.erase(heard_.begin());
    return first;
  }
  // Of an answer, or of a group that failed.
  absl::Status Outcome() {
    const absl::StatusOr<JobNewsEntry> heard = Hear();
    if (!heard.ok()) return heard.status();
    if (const auto* const news = std::get_if<QueueNews>(&*heard)) {
      return news->groups.at(0).grants.status();
    }
    if (const auto* const news = std::get_if<BytesNews>(&*heard)) {
      return news->groups.at(0).grants.status();
    }
    const auto& answer = std::get<AnswerNews>(*heard).answer;
    const auto* const status = std::get_if<absl::Status>(&answer);
    return status == nullptr ? absl::OkStatus() : *status;
  }
  TensorId Register(uint64_t number, const std::string& name,
                    int64_t size_bytes = 4096) {
    TensorSpec spec;
    spec.name = name;
    spec.size_bytes = size_bytes;
    Ask(RegisterRequest{{.number = number}, {spec}});
    return std::get<std::vector<TensorId>>(std::get<AnswerNews>(*Hear()).answer)
        .at(0);
  }
  int64_t Open(uint64_t number, int64_t slot_bytes = 4096) {
    Ask(OpenRequest{.id = {.number = number},
                    .slot_bytes = slot_bytes,
                    .slots = 2,
                    .deadline = absl::InfiniteFuture()});
    return std::get<OpenedQueue>(std::get<AnswerNews>(*Hear()).answer).id;
  }
  // What a queue is pushed, without waiting for it.
  void Push(int64_t queue, TensorId tensor, Access access) {
    PushRequest push;
    push.queue = queue;
    push.wants = {{tensor, access}};
    push.deadline = absl::InfiniteFuture();
    Ask(std::move(push));
  }
  // And its grant.
  absl::StatusOr<Grant> Take(int64_t queue, TensorId tensor, Access access) {
    Push(queue, tensor, access);
    while (true) {
      const absl::StatusOr<JobNewsEntry> heard = Hear();
      if (!heard.ok()) return heard.status();
      const auto& groups = std::get<QueueNews>(*heard).groups;
      if (groups.empty()) continue;  // it waits
      if (!groups.front().grants.ok()) return groups.front().grants.status();
      return groups.front().grants->front();
    }
  }

 private:
  // What the daemon has said before it went is there all the same.
  absl::StatusOr<std::vector<std::byte>> Read() {
    absl::Status there;
    std::vector<std::byte> packet;
    while (true) {
      const absl::StatusOr<bool> has_read = reader_->Read(&packet);
      if (!has_read.ok()) return has_read.status();
      if (*has_read) return packet;
      if (!there.ok()) return there;
      if (reader_->Rest()) there = socket_.Await(Soon()).status();
    }
  }

  PacketSocket socket_;
  OwnDescriptor memory_;
  OwnDescriptor ring_file_;
  std::optional<SharedMemory> rings_;
  std::optional<RingWriter> writer_;
  std::optional<RingReader> reader_;
  OwnDescriptor page_;
  Welcome welcome_;
  FragmentReader pieces_;
  uint64_t posted_ = 0;
  std::vector<JobNewsEntry> heard_;
};

class HostileJobTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.Serves());
    auto other = ConnectAs(daemon_, kHostileMemory, "other");
    ASSERT_TRUE(other.ok()) << other.status();
    other_ = *std::move(other);
    kept_ = *RegisterOf(*other_, "kept", 4096);
    ASSERT_TRUE(FillOf(*other_, kept_, 7));
  }
  // A file that the daemon has given keeps its size and its seals.
  static void ExpectFixedSize(const OwnDescriptor& file) {
    const int fd = file.get();
    EXPECT_EQ(ftruncate(fd, 0), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(ftruncate(fd, 1 << 30), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
    EXPECT_EQ(errno, EPERM);
  }
  // Others are undisturbed, and nothing is left of the process.
  void TearDown() override {
    EXPECT_TRUE(Holds(*other_, kept_, 7));
    EXPECT_TRUE(daemon_.WaitUntil(
        [&] { return UsedMemory(daemon_) == kHostileMemory; }));
    other_.reset();
    const ChildResult& ended = daemon_.End();
    EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  }
  // The connection ends, with a reason that has these words.
  static void ExpectEnd(RawJob& job, absl::StatusCode code,
                        const std::string& words) {
    absl::Status how;
    do {
      how = job.Hear().status();
    } while (how.ok());
    EXPECT_EQ(how.code(), code) << how;
    EXPECT_THAT(std::string(how.message()), testing::HasSubstr(words));
    EXPECT_TRUE(absl::IsUnavailable(job.Hear().status()));
  }

  RunningDaemon daemon_{""};
  std::unique_ptr<Runtime> other_;
  TensorId kept_;
};

}  // namespace terrace
