// What a process may do to the daemon that it is connected to, and how the
// daemon and the others are after it.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/wire/packet_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/running_daemon.h"

namespace terrace {
namespace {

using testing::HasSubstr;

using Bytes = std::vector<std::byte>;

class HostileClientTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(daemon_.Serves()); }
  void TearDown() override {
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
    Bytes bytes = Request(1);
    const int descriptor = STDIN_FILENO;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
    iovec part = {bytes.data(), bytes.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    ASSERT_GT(sendmsg(client.descriptor(), &message, 0), 0);
    EXPECT_TRUE(absl::IsUnavailable(Answer(client).status()));
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
  const int fd = dup(client.descriptor());  // which a child keeps
  const pid_t child = fork();
  if (child == 0) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), 0);
    _exit(sent == static_cast<ssize_t>(bytes.size()) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  close(fd);
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
  int sent = 0;
  const absl::Time end = absl::Now() + absl::Seconds(2);
  while (absl::Now() < end) {
    if (!*deaf.Send(Request(static_cast<uint64_t>(sent)))) break;
    ++sent;
  }
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(daemon_.Status().ok());
  // It is answered as it reads, each once and in order.
  for (int i = 0; i < sent; ++i) {
    const absl::StatusOr<Envelope> answer = Answer(deaf);
    ASSERT_TRUE(answer.ok()) << answer.status();
    ASSERT_EQ(answer->sequence, static_cast<uint64_t>(i));
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
TEST(FewDescriptorsTest, WhoHasNoRoomIsTurnedAway) {
  RunningDaemon daemon("", {.before = "ulimit -n 40"});
  ASSERT_TRUE(daemon.Serves()) << daemon.Wait().errors;
  std::vector<PacketSocket> all;
  for (int i = 0; i < 60; ++i) {
    auto made = PacketSocket::Connect(daemon.socket(), Soon());
    ASSERT_TRUE(made.ok()) << made.status();
    all.push_back(*std::move(made));
  }
  const auto request = Encode({.sequence = 5, .body = StatusRequest()});
  int served = 0;
  int turned_away = 0;
  for (PacketSocket& each : all) {
    each.Send(*request).IgnoreError();
    const absl::StatusOr<Packet> answer = each.Await(Soon());
    answer.ok() ? ++served : ++turned_away;
    EXPECT_TRUE(answer.ok() || absl::IsUnavailable(answer.status()))
        << answer.status();
  }
  EXPECT_GT(served, 5);
  EXPECT_GT(turned_away, 5);
  all.clear();
  EXPECT_TRUE(daemon.WaitUntil([&] { return daemon.Status().ok(); }));
  EXPECT_THAT(daemon.End().errors, HasSubstr("turned one away: "));
}

}  // namespace
}  // namespace terrace
