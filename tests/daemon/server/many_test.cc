// What a daemon answers when many jobs are there, and when much is asked of it
// at a time.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/client/control_client.h"
#include "daemon/wire/fragments.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class ManyTest : public testing::Test {
 protected:
  static std::vector<std::byte> Bytes(uint64_t sequence, EnvelopeBody body) {
    return *Encode({.sequence = sequence, .body = std::move(body)});
  }

  static PacketSocket Connected(const RunningDaemon& daemon) {
    auto socket = PacketSocket::Connect(daemon.socket(), Soon());
    EXPECT_TRUE(socket.ok()) << socket.status();
    return *std::move(socket);
  }

  // The next message, of however many packets.
  static absl::StatusOr<Envelope> NextOf(PacketSocket& socket) {
    FragmentReader reader;
    Envelope message;
    while (true) {
      absl::StatusOr<Packet> packet = socket.Await(Soon());
      if (!packet.ok()) return packet.status();
      const absl::StatusOr<bool> is_whole = reader.Add(packet->bytes, &message);
      if (!is_whole.ok()) return is_whole.status();
      if (*is_whole) return message;
    }
  }
};

// Connects as many jobs as make a status longer than a packet.
class ManyJobsTest : public ManyTest {
 protected:
  static constexpr int kJobs = 240;
  static constexpr size_t kNameBytes = 250;

  void SetUp() override {
    ASSERT_TRUE(daemon_.Serves());
    for (int i = 0; i < kJobs; ++i) {
      std::string name = absl::StrCat(i, "-");
      name.resize(kNameBytes, 'j');
      auto job = ConnectAs(daemon_, 64 << 10, name);
      ASSERT_TRUE(job.ok()) << i << ": " << job.status();
      jobs_.push_back(*std::move(job));
    }
  }

  const TemporaryDirectory path_;
  RunningDaemon daemon_{
      "[quota.user]\nconnections = 1000\n",
      {.tiers = absl::StrCat("'dram=64MiB', 'nvme:", path_.path(), "=64MiB'")}};
  std::vector<std::unique_ptr<Runtime>> jobs_;
};

TEST_F(ManyJobsTest, AStatusHasThemAll) {
  const auto status = daemon_.Status();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->jobs.size(), size_t{kJobs});
  EXPECT_GT(kJobs * kNameBytes, size_t{kMostPacketBytes} * 9 / 10);
  const ChildResult json =
      ChildProcess({TERRACE_PROGRAM, "status", "--json", "--daemon",
                    absl::StrCat("unix:", daemon_.socket())})
          .Wait();
  EXPECT_EQ(json.exit_code, 0) << json.errors;
  EXPECT_THAT(json.output, HasSubstr(absl::StrCat("\"", kJobs - 1, "-jjj")));
  // Who does not read what it asked for is not waited for, and ends once its
  // user's connections have too much of it.
  std::vector<PacketSocket> lazy;
  bool has_ended = false;
  for (int i = 0; i < 200 && !has_ended; ++i) {
    lazy.push_back(Connected(daemon_));
    absl::Status sent;
    for (uint64_t j = 1; j <= 8 && sent.ok(); ++j) {
      sent = lazy.back().Send(Bytes(j, StatusRequest())).status();
    }
    // Once it is answered all before it were served.
    ASSERT_TRUE(daemon_.Status().ok()) << i;
    if (sent.ok()) sent = lazy.back().Send(Bytes(9, StatusRequest())).status();
    has_ended = absl::IsUnavailable(sent);
  }
  EXPECT_TRUE(has_ended);
  lazy.clear();
  const auto after = daemon_.Status();
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->jobs.size(), size_t{kJobs});
  jobs_.clear();
  const ChildResult& ended = daemon_.End();
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_THAT(ended.errors, HasSubstr("bytes of answers that are not read"));
}

class ManyQuestionsTest : public ManyTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.Serves());
    auto job = ConnectAs(daemon_, 1 << 20, "night");
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
    ASSERT_TRUE(RegisterOf(*job_, "a", 4096).ok());
  }

  RunningDaemon daemon_{""};
  std::unique_ptr<Runtime> job_;
};

// One after the other, though some wait for a runtime, and though the answers
// before were not read.
TEST_F(ManyQuestionsTest, WhatIsAskedBehindAListingWaitsItsTurn) {
  PacketSocket socket = Connected(daemon_);
  uint64_t asked = 0;
  uint64_t answered = 0;
  for (int round = 0; round < 5; ++round) {
    // Until nothing more is taken, as nothing is read.
    for (int in_vain = 0; in_vain < 30;) {
      const EnvelopeBody body = asked % 2 == 0 ? EnvelopeBody(TensorsRequest())
                                               : EnvelopeBody(StatusRequest());
      const absl::StatusOr<bool> sent = socket.Send(Bytes(asked + 1, body));
      ASSERT_TRUE(sent.ok()) << asked << ": " << sent.status();
      if (*sent) {
        ++asked;
        in_vain = 0;
      } else {
        ++in_vain;
        ASSERT_TRUE(daemon_.Status().ok());  // it has served what it serves
      }
    }
    EXPECT_GT(asked, answered + 10);
    while (answered < asked) {
      const absl::StatusOr<Envelope> answer = NextOf(socket);
      ASSERT_TRUE(answer.ok()) << answered << ": " << answer.status();
      EXPECT_EQ(std::holds_alternative<TensorsPage>(answer->body),
                answered % 2 == 0);
      EXPECT_EQ(answer->sequence, ++answered);
    }
  }
}

// One runtime answers one listing after the other, and each at once: what waits
// for its turn is woken by the answer before it, and not by a watch that looks
// twice a second.
TEST_F(ManyQuestionsTest, ListingsOfOneSessionDoNotWaitForTheWatch) {
  constexpr int kRounds = 40;
  PacketSocket one = Connected(daemon_);
  PacketSocket two = Connected(daemon_);
  const absl::Time begin = SystemClock().Now();
  for (uint64_t i = 1; i <= kRounds; ++i) {
    for (PacketSocket* const each : {&one, &two}) {
      ASSERT_TRUE(*each->Send(Bytes(i, TensorsRequest())));
    }
    for (PacketSocket* const each : {&one, &two}) {
      const absl::StatusOr<Envelope> answer = NextOf(*each);
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_EQ(std::get<TensorsPage>(answer->body).tensors.size(), 1u);
    }
  }
  // By the watch it would be a quarter of a second each, in half of the rounds.
  EXPECT_LT(SystemClock().Now() - begin,
            OnThisMachine(absl::Milliseconds(50) * kRounds));
}

}  // namespace
}  // namespace terrace
