// Sockets against raw system calls on the other side.
#include "daemon/wire/packet_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/packet_listener.h"
#include "daemon/wire/socket_address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/wire/send_descriptors.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using testing::HasSubstr;

using Bytes = std::vector<std::byte>;

Bytes BytesOf(const std::string& text) {
  const auto* const data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

absl::Time Soon() { return SystemClock().Now() + absl::Seconds(10); }

int OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

class PacketSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<PacketListener> made = PacketListener::Make({.path = path_});
    ASSERT_TRUE(made.ok()) << made.status();
    listener_ = std::make_unique<PacketListener>(*std::move(made));
  }
  PacketSocket Connected() {
    absl::StatusOr<PacketSocket> made = PacketSocket::Connect(path_, Soon());
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  PacketSocket Accepted() {
    auto accepted = listener_->Accept();
    EXPECT_TRUE(accepted.ok() && accepted->has_value());
    return **std::move(accepted);
  }
  static std::string Refused(PacketSocket& socket) {
    const auto received = socket.Receive();
    EXPECT_TRUE(absl::IsInvalidArgument(received.status()))
        << received.status();
    return std::string(received.status().message());
  }

  const TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/s";
  std::unique_ptr<PacketListener> listener_;
};

TEST_F(PacketSocketTest, PacketsComeWholeInOrderWithTheirSender) {
  PacketSocket client = Connected();
  ASSERT_TRUE(*client.Send(BytesOf("one")));  // before it is accepted
  PacketSocket server = Accepted();
  ASSERT_TRUE(*client.Send(Bytes(kMostPacketBytes, std::byte{7})));
  const Peer self = {getuid(), getgid(), getpid()};
  EXPECT_EQ(*server.peer(), self);
  auto first = server.Receive();
  ASSERT_TRUE(first.ok() && first->has_value()) << first.status();
  EXPECT_EQ((*first)->bytes, BytesOf("one"));
  EXPECT_EQ((*first)->sender, self);
  const auto second = server.Await(Soon());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->bytes.size(), kMostPacketBytes);
  EXPECT_FALSE(server.Receive()->has_value());
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(server.Await(SystemClock().Now()).status()));
}

TEST_F(PacketSocketTest, AnEndIsToldToBoth) {
  {
    PacketSocket client = Connected();
    PacketSocket server = Accepted();
    ASSERT_TRUE(*client.Send(BytesOf("last")));
    client = Connected();  // ends the first one
    EXPECT_EQ(server.Await(Soon())->bytes, BytesOf("last"));
    EXPECT_TRUE(absl::IsUnavailable(server.Receive().status()));
    EXPECT_TRUE(absl::IsUnavailable(server.Send(BytesOf("x")).status()));
  }
  EXPECT_TRUE(listener_->Accept()->has_value());  // it has gone meanwhile
  EXPECT_FALSE(listener_->Accept()->has_value());
}

TEST_F(PacketSocketTest, ALastWordIsHeardWhateverItsSenderDidNotRead) {
  PacketSocket client = Connected();
  {
    PacketSocket server = Accepted();
    ASSERT_TRUE(*client.Send(BytesOf("unread")));
    ASSERT_TRUE(*server.Send(BytesOf("no")));
  }
  const auto word = client.Await(Soon());
  ASSERT_TRUE(word.ok()) << word.status();
  EXPECT_EQ(word->bytes, BytesOf("no"));
  EXPECT_TRUE(absl::IsUnavailable(client.Await(Soon()).status()));
}

TEST_F(PacketSocketTest, WhoDoesNotReadIsNotWaitedFor) {
  PacketSocket client = Connected();
  PacketSocket server = Accepted();
  int sent = 0;
  while (*server.Send(Bytes(1000))) ASSERT_LT(++sent, 100'000);
  for (int i = 0; i < sent; ++i) ASSERT_TRUE(client.Await(Soon()).ok());
  EXPECT_TRUE(*server.Send(Bytes(1000)));
}

TEST_F(PacketSocketTest, TooLongAPacketIsRefused) {
  PacketSocket client = Connected();
  PacketSocket server = Accepted();
  ASSERT_TRUE(*client.Send(Bytes(kMostPacketBytes + 1)));
  EXPECT_THAT(Refused(server), HasSubstr("more than 65536 bytes"));
  ASSERT_TRUE(*client.Send(Bytes(3 * kMostPacketBytes)));
  EXPECT_THAT(Refused(server), HasSubstr("more than 65536 bytes"));
}

// By the kernel, where it can.
TEST_F(PacketSocketTest, DescriptorsAreRefused) {
  PacketSocket client = Connected();
  PacketSocket server = Accepted();
  const int on = 1;
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS
  const bool has_right = setsockopt(server.descriptor(), SOL_SOCKET,
                                    kPassRights, &on, sizeof(on)) == 0;
  for (const bool is_passed : {true, false}) {
    if (!is_passed) RefuseDescriptors(server.descriptor());
    const int before = OpenDescriptors();
    for (const size_t count : {1u, 8u, 253u}) {
      const int error = SendDescriptors(client.descriptor(),
                                        std::vector<int>(count, STDIN_FILENO));
      if (is_passed || !has_right) {
        ASSERT_EQ(error, 0);
        EXPECT_THAT(Refused(server), HasSubstr("not taken")) << count;
      } else {
        EXPECT_EQ(error, EPERM);
      }
      EXPECT_EQ(OpenDescriptors(), before) << count;
    }
  }
}

TEST_F(PacketSocketTest, AChildIsAnotherSender) {
  PacketSocket client = Connected();
  PacketSocket server = Accepted();
  const int fd = dup(client.descriptor());  // which a child keeps
  const pid_t child = fork();
  if (child == 0) _exit(send(fd, "x", 1, 0) == 1 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  close(fd);
  const auto packet = server.Await(Soon());
  ASSERT_TRUE(packet.ok()) << packet.status();
  EXPECT_EQ(packet->sender.pid, child);
  EXPECT_EQ(server.peer()->pid, getpid());
}

TEST_F(PacketSocketTest, AFullQueueIsWaitedForUntilTheDeadline) {
  std::vector<PacketSocket> all;
  absl::Status full;
  while (full.ok() && all.size() < 1000) {
    auto made = PacketSocket::Connect(path_, SystemClock().Now());
    full = made.status();
    if (made.ok()) all.push_back(*std::move(made));
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr(path_));
  std::thread accepts([this] {
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_TRUE(listener_->Accept()->has_value());
  });
  EXPECT_TRUE(PacketSocket::Connect(path_, Soon()).ok());
  accepts.join();
}

TEST_F(PacketSocketTest, WhatIsNotThereSaysSo) {
  const auto error = [](const std::string& path) {
    return PacketSocket::Connect(path, Soon()).status();
  };
  EXPECT_TRUE(absl::IsNotFound(error(directory_.path() + "/none")));
  EXPECT_TRUE(absl::IsInvalidArgument(error("")));
  EXPECT_TRUE(absl::IsInvalidArgument(error("/" + std::string(120, 'x'))));
  listener_.reset();
  EXPECT_TRUE(directory_.Entries() == std::vector<std::string>{"s.lock"});
  EXPECT_TRUE(absl::IsNotFound(error(path_)));
}

TEST_F(PacketSocketTest, ASecondListenerIsRefused) {
  const absl::Status second = PacketListener::Make({.path = path_}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr("another daemon"));
  Connected();
}

// Its lock may be another kind's, or have been removed.
TEST_F(PacketSocketTest, APathWhereAnybodyListensIsLeft) {
  listener_.reset();
  for (const int kind : {SOCK_STREAM, SOCK_SEQPACKET}) {
    const std::string path = path_ + std::to_string(kind);
    const auto address = SocketAddress::Of(path);
    ASSERT_TRUE(address.ok());
    const int fd = socket(AF_UNIX, kind | SOCK_CLOEXEC, 0);
    ASSERT_EQ(bind(fd, address->get(), address->size()), 0);
    ASSERT_EQ(listen(fd, 1), 0);
    const absl::Status refused = PacketListener::Make({.path = path}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_TRUE(std::filesystem::exists(path));
    close(fd);
    EXPECT_TRUE(PacketListener::Make({.path = path}).ok());
  }
}

TEST_F(PacketSocketTest, OneThatHasStoppedKeepsItsLock) {
  listener_->Stop();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      PacketListener::Make({.path = path_}).status()));
  listener_.reset();
  EXPECT_TRUE(PacketListener::Make({.path = path_}).ok());
}

TEST_F(PacketSocketTest, APathIsTakenFromWhoIsGoneAndFromNobodyElse) {
  listener_.reset();
  // A socket that nobody listens at, as a killed process leaves it.
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
  const int stale = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  ASSERT_EQ(bind(stale, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  close(stale);
  EXPECT_TRUE(PacketListener::Make({.path = path_}).ok());

  directory_.Write("s", "a file of somebody's");
  const absl::Status refused = PacketListener::Make({.path = path_}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_EQ(std::filesystem::file_size(path_), 20u);
}

TEST_F(PacketSocketTest, TheSocketIsForItsUserOrAGroup) {
  struct stat found = {};
  ASSERT_EQ(lstat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777u, 0600u);
  listener_.reset();
  auto made = PacketListener::Make({.path = path_, .group = getgid()});
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(lstat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777u, 0660u);
  EXPECT_EQ(found.st_gid, getgid());
  // Whatever the process's mask is.
  made->Stop();
  const mode_t mask = umask(0077);
  auto again = PacketListener::Make({.path = path_ + "2", .group = getgid()});
  umask(mask);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(lstat((path_ + "2").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777u, 0660u);
}

TEST_F(PacketSocketTest, AnInheritedSocketListensAndStays) {
  const int fd = dup(listener_->descriptor());
  listener_->Accept().IgnoreError();
  {
    auto inherited = PacketListener::Inherit(OwnDescriptor::Of(fd));
    ASSERT_TRUE(inherited.ok()) << inherited.status();
    EXPECT_EQ(inherited->path(), path_);
    PacketSocket client = Connected();
    EXPECT_TRUE(inherited->Accept()->has_value());
  }
  EXPECT_TRUE(std::filesystem::exists(path_));
  Connected();
}

TEST_F(PacketSocketTest, OneForEverybodyIsNotInherited) {
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  const auto inherited =
      PacketListener::Inherit(OwnDescriptor::Of(dup(listener_->descriptor())));
  EXPECT_TRUE(absl::IsInvalidArgument(inherited.status()));
  EXPECT_THAT(std::string(inherited.status().message()),
              HasSubstr("everybody may connect"));
}

TEST_F(PacketSocketTest, AnotherDescriptorIsNotInherited) {
  std::array<int, 2> pair;
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair.data()), 0);
  for (const int each :
       {pair[0], pair[1], dup(STDIN_FILENO), socket(AF_UNIX, SOCK_STREAM, 0)}) {
    const auto inherited = PacketListener::Inherit(OwnDescriptor::Of(each));
    EXPECT_TRUE(absl::IsInvalidArgument(inherited.status()));
  }
}

}  // namespace
}  // namespace terrace
