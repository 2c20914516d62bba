// What a process may do to the daemon that it is connected to, and how the
// daemon and the others are after it.
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/wire/packet_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/running_daemon.h"
#include "tests/daemon/wire/child_sender.h"
#include "tests/daemon/wire/send_descriptors.h"

namespace terrace {
namespace {

using testing::HasSubstr;

using Bytes = std::vector<std::byte>;

class HostileClientTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(daemon_.Serves()); }
  void TearDown() override {
    if (!daemon_.running()) return;  // the test has ended it
    const auto status = daemon_.Status();
    EXPECT_TRUE(status.ok()) << status.status();
    const ChildResult& ended = daemon_.End();
    EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  }

  PacketSocket Connected() {
    auto made = PacketSocket::Connect(daemon_.socket(), Soon());
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  static Bytes Request(uint64_t sequence) {
    return *Encode({.sequence = sequence, .body = StatusRequest()});
  }
  static absl::StatusOr<Envelope> Answer(PacketSocket& socket) {
    absl::StatusOr<Packet> packet = socket.Await(Soon());
    if (!packet.ok()) return packet.status();
    return Decode(packet->bytes);
  }
  static absl::Status Refused(PacketSocket& socket) {
    const absl::StatusOr<Envelope> answer = Answer(socket);
    if (!answer.ok()) return answer.status();
    const auto* const refusal = std::get_if<Refusal>(&answer->body);
    return refusal == nullptr ? absl::OkStatus() : refusal->why;
  }
  int64_t Descriptors() const {
    const std::filesystem::directory_iterator all(
        absl::StrCat("/proc/", daemon_.pid(), "/fd"));
    return std::distance(begin(all), end(all));
  }
  // Until what was connected has ended there.
  void AwaitDescriptors(int64_t count) {
    EXPECT_TRUE(daemon_.WaitUntil([&] { return Descriptors() == count; }))
        << Descriptors() << " of " << count;
  }

  RunningDaemon daemon_{""};
};

TEST_F(HostileClientTest, WhatCannotBeReadIsRefusedAndTheNextOneServed) {
  PacketSocket client = Connected();
  std::mt19937 draw(1);
  for (int round = 0; round < 2000; ++round) {
    Bytes bytes = Request(static_cast<uint64_t>(round));
    if (round % 2 == 0) {
      for (std::byte& each : bytes) each = static_cast<std::byte>(draw());
    }
    ASSERT_TRUE(*client.Send(bytes));
    const absl::StatusOr<Envelope> answer = Answer(client);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->sequence, round % 2 == 0 ? 0u : round) << round;
  }
}

TEST_F(HostileClientTest, AnAnswerIsNoRequest) {
  PacketSocket client = Connected();
  ASSERT_TRUE(*client.Send(
      *Encode({.sequence = 3, .body = Refusal{absl::AbortedError("x")}})));
  EXPECT_TRUE(absl::IsInvalidArgument(Refused(client)));
  ASSERT_TRUE(*client.Send(*Encode({.sequence = 4, .body = DaemonStatus()})));
  EXPECT_TRUE(absl::IsInvalidArgument(Refused(client)));
}

TEST_F(HostileClientTest, DescriptorsEndTheConnectionAndAreClosed) {
  const int64_t before = Descriptors();
  for (int round = 0; round < 50; ++round) {
    PacketSocket client = Connected();
    const int error = SendDescriptors(client.descriptor(), {STDIN_FILENO});
    if (error == 0) {
      EXPECT_TRUE(absl::IsUnavailable(Answer(client).status()));
    } else {
      EXPECT_EQ(error, EPERM);  // the kernel's own
    }
  }
  AwaitDescriptors(before);
}

TEST_F(HostileClientTest, TooLongAMessageEndsTheConnection) {
  PacketSocket client = Connected();
  ASSERT_TRUE(*client.Send(Bytes(kMostPacketBytes + 1)));
  EXPECT_TRUE(absl::IsUnavailable(Answer(client).status()));
}

TEST_F(HostileClientTest, AnEmptyMessageEndsTheConnection) {
  PacketSocket client = Connected();
  ASSERT_TRUE(*client.Send({}));
  EXPECT_TRUE(absl::IsUnavailable(Answer(client).status()));
}

TEST_F(HostileClientTest, AChildOfTheClientIsAnother) {
  PacketSocket client = Connected();
  const Bytes bytes = Request(9);
  const pid_t child = SendFromChild(client.descriptor(), bytes);
  const absl::Status refused = Refused(client);
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(absl::StrCat("pid ", child)));
  // That message alone.
  ASSERT_TRUE(*client.Send(bytes));
  EXPECT_EQ(Answer(client)->sequence, 9u);
}

TEST_F(HostileClientTest, WhoDoesNotReadHoldsUpNobody) {
  PacketSocket deaf = Connected();
  uint64_t sent = 0;
  // Until the daemon does not read it either.
  bool is_full = false;
  ASSERT_TRUE(daemon_.WaitUntil([&] {
    for (int i = 0; i < 10'000 && !is_full; ++i) {
      is_full = !*deaf.Send(Request(sent));
      if (!is_full) ++sent;
    }
    return is_full;
  }));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(daemon_.Status().ok());
  // It is answered as it reads, each once and in order.
  for (uint64_t i = 0; i < sent; ++i) {
    const absl::StatusOr<Envelope> answer = Answer(deaf);
    ASSERT_TRUE(answer.ok()) << answer.status();
    ASSERT_EQ(answer->sequence, i);
  }
}

TEST_F(HostileClientTest, ManyComeAndGoAndNothingIsLeft) {
  const int64_t before = Descriptors();
  for (int round = 0; round < 2000; ++round) {
    PacketSocket client = Connected();
    if (round % 3 == 0) {
      client.Send(Request(1)).IgnoreError();
    }
    if (round % 6 == 0) {
      EXPECT_TRUE(Answer(client).ok());
    }
  }
  AwaitDescriptors(before);
  EXPECT_EQ(daemon_.Status()->users[0].connections, 1);
}

// Of a daemon with few descriptors: who has no room is turned away, and who is
// connected is served.
TEST_F(HostileClientTest, WhoHasNoRoomIsTurnedAway) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitisers look at memory by a pipe of their own";
#endif
  const auto most = static_cast<rlim_t>(Descriptors()) + 12;
  const rlimit limit = {most, most};
  ASSERT_EQ(prlimit(daemon_.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  std::vector<PacketSocket> all;
  for (int i = 0; i < 40; ++i) all.push_back(Connected());
  int served = 0;
  int turned_away = 0;
  for (PacketSocket& each : all) {
    each.Send(Request(5)).IgnoreError();
    const absl::StatusOr<Envelope> answer = Answer(each);
    answer.ok() ? ++served : ++turned_away;
    EXPECT_TRUE(answer.ok() || absl::IsUnavailable(answer.status()))
        << answer.status();
  }
  EXPECT_GT(served, 5);
  EXPECT_GT(turned_away, 5);
  all.clear();
  EXPECT_TRUE(daemon_.WaitUntil([&] { return daemon_.Status().ok(); }))
      << daemon_.Wait().errors;
  EXPECT_THAT(daemon_.End().errors, HasSubstr("turned one away: "));
}

TEST_F(HostileClientTest, WhoIsRefusedWithoutEndFillsNoLog) {
  std::vector<PacketSocket> all;
  for (int i = 0; i < 64; ++i) all.push_back(Connected());
  for (int round = 0; round < 500; ++round) {
    EXPECT_TRUE(absl::IsResourceExhausted(daemon_.Status().status()));
  }
  all.clear();
  EXPECT_TRUE(daemon_.WaitUntil([&] { return daemon_.Status().ok(); }));
  const std::string log = daemon_.End().errors;
  const size_t lines =
      std::vector<std::string>(absl::StrSplit(log, "refused uid")).size() - 1;
  EXPECT_GE(lines, 1u) << log;
  EXPECT_LT(lines, 60u) << log;
}

}  // namespace
}  // namespace terrace
