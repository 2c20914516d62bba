// The program `terraced`, as a shell and a service manager start it.
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/client/control_client.h"
#include "daemon/wire/packet_listener.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/running_daemon.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// Who stays connected.
std::vector<PacketSocket> Connected(const RunningDaemon& daemon, int count) {
  std::vector<PacketSocket> all;
  for (int i = 0; i < count; ++i) {
    auto made = PacketSocket::Connect(daemon.socket(), Soon());
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) all.push_back(*std::move(made));
  }
  return all;
}

// A build below a folder that is its user's alone is nobody else's to run.
bool OthersMayRunIt() {
  return ChildProcess({"/usr/bin/setpriv", "--clear-groups", "--reuid=4711",
                       "--regid=4711", TERRACED_PROGRAM, "--version"})
             .Wait()
             .exit_code == 0;
}

TEST(TerracedTest, ItServesUntilItIsToldToEnd) {
  for (const int signal : {SIGTERM, SIGINT}) {
    RunningDaemon daemon("");
    ASSERT_TRUE(daemon.Serves()) << daemon.Wait().errors;
    const auto status = daemon.Status();
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(status->pid, daemon.pid());
    EXPECT_EQ(status->phase, "serving");
    EXPECT_LT(status->silent_for_ms, 60'000);
    ASSERT_THAT(status->tiers, SizeIs(2));
    EXPECT_EQ(status->tiers[0].name, "dram");
    EXPECT_EQ(status->tiers[0].budget_bytes, 8 << 20);
    EXPECT_EQ(status->tiers[1].budget_bytes, 8 << 20);
    ASSERT_THAT(status->users, SizeIs(1));
    EXPECT_EQ(status->users[0].uid, getuid());
    EXPECT_EQ(status->users[0].connections, 1);
    EXPECT_THAT(daemon.OnPath(), SizeIs(1));  // taken from the start
    daemon.Kill(signal);
    const ChildResult& ended = daemon.Wait();
    EXPECT_EQ(ended.exit_code, 0) << ended.errors;
    EXPECT_THAT(ended.errors, HasSubstr("info: has ended"));
    EXPECT_THAT(daemon.OnPath(), IsEmpty());
    EXPECT_FALSE(std::filesystem::exists(daemon.socket()));
  }
}

TEST(TerracedTest, AServiceManagerHearsHowItIs) {
  RunningDaemon daemon("", {.before = "export WATCHDOG_USEC=300000"});
  ASSERT_TRUE(daemon.Serves()) << daemon.Wait().errors;
  EXPECT_TRUE(daemon.WaitUntilTold("STATUS=serves dram=8MiB, nvme:"));
  EXPECT_TRUE(daemon.WaitUntilTold("WATCHDOG=1"));
  daemon.Kill(SIGHUP);
  EXPECT_TRUE(daemon.WaitUntilTold("RELOADING=1\nMONOTONIC_USEC="));
  EXPECT_EQ(daemon.End().exit_code, 0);
  EXPECT_THAT(daemon.Told(), testing::Contains(HasSubstr("STOPPING=1")));
}

TEST(TerracedTest, AServiceManagerThatDoesNotListenIsNotWaitedFor) {
  RunningDaemon daemon("", {.before = "export WATCHDOG_USEC=3000"});
  ASSERT_TRUE(daemon.Serves()) << daemon.Wait().errors;
  // Its socket has room for some words; this takes a hundred and more.
  const absl::Time end = SystemClock().Now() + absl::Milliseconds(300);
  while (SystemClock().Now() < end) ASSERT_TRUE(daemon.Status().ok());
  EXPECT_EQ(daemon.End().exit_code, 0);
}

TEST(TerracedTest, WithoutAWatchNobodyHearsThatItLives) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  EXPECT_TRUE(daemon.Status().ok());
  EXPECT_EQ(daemon.End().exit_code, 0);
  for (const std::string& each : daemon.Told()) {
    EXPECT_THAT(each, Not(HasSubstr("WATCHDOG")));
  }
}

TEST(TerracedTest, AnInheritedSocketIsServedAndStays) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/control.sock";
  auto listener = PacketListener::Make({.path = path});
  ASSERT_TRUE(listener.ok()) << listener.status();
  const int fd = dup(listener->descriptor());  // which the child has
  RunningDaemon daemon(
      "", {.before = "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=control",
           .redirection = absl::StrCat("3<&", fd),
           .owns_socket = false});
  close(fd);
  ASSERT_TRUE(daemon.Serves()) << daemon.Wait().errors;
  EXPECT_TRUE(AskStatus(path, Soon()).ok());
  EXPECT_EQ(daemon.End().exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(path));
}

// As a user's daemon and its command line find each other.
TEST(TerracedTest, WithoutASocketItIsFoundInTheUsersFolder) {
  if (getuid() == 0 && !OthersMayRunIt()) {
    GTEST_SKIP() << TERRACED_PROGRAM << " is for one user";
  }
  const TemporaryDirectory directory;
  const uid_t uid = getuid() == 0 ? 4711 : 0;
  const std::string folder = directory.MakeDirectory("user");
  if (uid != 0) {
    ASSERT_EQ(chown(folder.c_str(), uid, uid), 0);
    ASSERT_EQ(chmod(directory.path().c_str(), 0711), 0);
  }
  RunningDaemon daemon("", {.before = "export XDG_RUNTIME_DIR=" + folder,
                            .uid = uid,
                            .owns_socket = false});
  ASSERT_TRUE(daemon.Serves()) << daemon.Wait().errors;
  EXPECT_TRUE(AskStatus(folder + "/terrace/control.sock", Soon()).ok());
  EXPECT_EQ(daemon.End().exit_code, 0);
}

TEST(TerracedTest, WhatHasTheSocketHasAllUntilItsEnd) {
  RunningDaemon daemon("drain_seconds = 1\n");
  ASSERT_TRUE(daemon.Serves());
  daemon.Kill(SIGSTOP);
  // It cannot end now, and its socket is not another's.
  daemon.Kill(SIGTERM);
  const ChildResult second =
      ChildProcess({TERRACED_PROGRAM, "--config", daemon.config(), "--socket",
                    daemon.socket()})
          .Wait();
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.errors, HasSubstr("another daemon listens there"));
  daemon.Kill(SIGCONT);
  EXPECT_EQ(daemon.Wait().exit_code, 0) << daemon.Wait().errors;
}

TEST(TerracedTest, AnInheritedDescriptorOfAnotherNameIsRefused) {
  RunningDaemon daemon(
      "", {.before = "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=metrics",
           .redirection = "3</dev/null"});
  EXPECT_EQ(daemon.Wait().exit_code, 1);
  EXPECT_THAT(daemon.Wait().errors, HasSubstr("'metrics' was inherited"));
}

TEST(TerracedTest, TheSecondOneAtASocketRefuses) {
  RunningDaemon first("");
  ASSERT_TRUE(first.Serves());
  const ChildResult second =
      ChildProcess({TERRACED_PROGRAM, "--config", first.config(), "--socket",
                    first.socket()})
          .Wait();
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.errors,
              HasSubstr(first.socket() + ": another daemon listens there"));
  EXPECT_THAT(first.OnPath(), SizeIs(1));
  EXPECT_TRUE(first.Status().ok());
}

TEST(TerracedTest, TheSecondOneAtADirectoryRefuses) {
  RunningDaemon first("");
  ASSERT_TRUE(first.Serves());
  const ChildResult second =
      ChildProcess({TERRACED_PROGRAM, "--config", first.config(), "--socket",
                    first.socket() + "2"})
          .Wait();
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.errors,
              HasSubstr(absl::StrCat("another daemon has it for its jobs, ",
                                     "process ", first.pid())));
  EXPECT_THAT(first.OnPath(), SizeIs(1));
  EXPECT_TRUE(first.Status().ok());
}

TEST(TerracedTest, ItComesBackAfterItWasKilled) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  const std::vector<std::string> before = daemon.OnPath();
  daemon.Kill(SIGKILL);
  EXPECT_EQ(daemon.Wait().signal, SIGKILL);
  EXPECT_EQ(daemon.OnPath(), before);
  EXPECT_FALSE(daemon.Status().ok());
  daemon.Start();
  ASSERT_TRUE(daemon.WaitUntil([&] { return daemon.Status().ok(); }))
      << daemon.Wait().errors;
  const auto status = daemon.Status();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->pid, daemon.pid());
  // What the killed one had goes in the background.
  EXPECT_TRUE(daemon.WaitUntil([&] { return daemon.OnPath().size() == 1; }));
  EXPECT_NE(daemon.OnPath(), before);
  EXPECT_EQ(daemon.End().exit_code, 0);
}

TEST(TerracedTest, WhatCannotBeServedIsSaidAndNothingIsTaken) {
  RunningDaemon unknown("qouta.user.weight = 1\n");
  EXPECT_EQ(unknown.Wait().exit_code, 1);
  EXPECT_THAT(unknown.Wait().errors,
              HasSubstr(unknown.config() + ":2:1: no such key: qouta"));
  EXPECT_FALSE(std::filesystem::exists(unknown.socket()));

  RunningDaemon nobody("[users.no-such-user]\n");
  EXPECT_EQ(nobody.Wait().exit_code, 1);
  EXPECT_THAT(nobody.Wait().errors, HasSubstr(":2:8: this host has no user"));

  RunningDaemon group("group = 'no-such-group'\n");
  EXPECT_EQ(group.Wait().exit_code, 1);
  EXPECT_THAT(group.Wait().errors,
              HasSubstr(":2:9: this host has no group no-such-group"));

  const TemporaryDirectory directory;
  const std::string config = directory.Write(
      "t.toml", "tiers = ['dram=8MiB', 'nvme:/no/such/path=8MiB']\n");
  const std::string socket = directory.path() + "/s";
  const ChildResult path =
      ChildProcess({TERRACED_PROGRAM, "--config", config, "--socket", socket})
          .Wait();
  EXPECT_EQ(path.exit_code, 1);
  EXPECT_THAT(path.errors, HasSubstr("/no/such/path"));
  EXPECT_FALSE(std::filesystem::exists(socket));
}

TEST(TerracedTest, WrongArgumentsAreRefused) {
  for (const std::vector<std::string>& each :
       {std::vector<std::string>{"--cofnig", "x"}, {"x"}, {"--config"}}) {
    std::vector<std::string> command = {TERRACED_PROGRAM};
    command.insert(command.end(), each.begin(), each.end());
    const ChildResult result = ChildProcess(command).Wait();
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.errors, HasSubstr("usage: terraced"));
  }
  EXPECT_EQ(ChildProcess({TERRACED_PROGRAM, "--help"}).Wait().exit_code, 0);
  EXPECT_THAT(ChildProcess({TERRACED_PROGRAM, "--version"}).Wait().output,
              testing::StartsWith("terraced "));
}

TEST(TerracedTest, ConnectionsAreCountedToTheQuota) {
  RunningDaemon daemon("quota.user.connections = 3\n");
  ASSERT_TRUE(daemon.Serves());
  std::vector<PacketSocket> all = Connected(daemon, 3);
  const auto refused = daemon.Status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_EQ(refused.status().message(),
            absl::StrCat("the user ", getuid(),
                         " has 3 connections, and the limit is 3"));
  all.pop_back();
  auto status = daemon.Status();
  EXPECT_TRUE(daemon.WaitUntil([&] {
    if (!status.ok()) status = daemon.Status();
    return status.ok();
  }));
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->users[0].connections, 3);
  EXPECT_EQ(status->users[0].connection_limit, 3);
  EXPECT_THAT(daemon.End().errors,
              HasSubstr(absl::StrCat("refused uid ", getuid(), ", pid ",
                                     getpid(), ": the user ")));
}

TEST(TerracedTest, QuotasAreReadAgainAndABrokenFileChangesNothing) {
  RunningDaemon daemon("quota.user.connections = 1\n");
  ASSERT_TRUE(daemon.Serves());
  const std::vector<PacketSocket> one = Connected(daemon, 1);
  EXPECT_FALSE(daemon.Status().ok());
  daemon.WriteConfig("quota.user.connections = 2\n");
  daemon.Kill(SIGHUP);
  ASSERT_TRUE(daemon.WaitUntilTold("RELOADING=1"));
  const auto is_served = [&] { return daemon.Status().ok(); };
  // It may hear of the next word before it has ended the last connection.
  EXPECT_TRUE(daemon.WaitUntil(is_served));
  daemon.WriteConfig("quota.user.connections = 'many'\n");
  daemon.Kill(SIGHUP);
  // Ready, then twice that it reads and that it is ready again.
  EXPECT_TRUE(daemon.WaitUntil([&] { return daemon.Told().size() >= 5; }));
  EXPECT_TRUE(daemon.WaitUntil(is_served));
  const ChildResult& ended = daemon.End();
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_THAT(ended.errors, HasSubstr("the configuration stays as it was: " +
                                      daemon.config() + ":2:26: "));
}

TEST(TerracedTest, AnOrdinaryUserMayRunIt) {
  if (getuid() != 0) GTEST_SKIP() << "every test is an ordinary user's";
  if (!OthersMayRunIt()) GTEST_SKIP() << TERRACED_PROGRAM << " is for one user";
  constexpr uid_t kUid = 4711;
  RunningDaemon daemon("", {.uid = kUid});
  ASSERT_TRUE(daemon.Serves()) << daemon.Wait().errors;
  const auto status = daemon.Status();  // root's
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_THAT(status->users, SizeIs(1));
  EXPECT_EQ(daemon.End().exit_code, 0);
  EXPECT_THAT(daemon.OnPath(), IsEmpty());
}

TEST(TerracedTest, OneUserDoesNotSeeAnother) {
  if (getuid() != 0) GTEST_SKIP() << "it takes root to be two users";
  if (!OthersMayRunIt()) GTEST_SKIP() << TERRACED_PROGRAM << " is for one user";
  RunningDaemon daemon("group = '4711'\n");
  ASSERT_TRUE(daemon.Serves());
  // The directory of a test is its user's.
  std::filesystem::permissions(
      std::filesystem::path(daemon.config()).parent_path(),
      std::filesystem::perms(0711));
  std::filesystem::permissions(
      std::filesystem::path(daemon.socket()).parent_path(),
      std::filesystem::perms(0711));
  const std::vector<PacketSocket> roots = Connected(daemon, 2);
  const auto as_other = [&](const std::string& group) {
    return ChildProcess({"/usr/bin/setpriv", "--clear-groups", "--reuid=4712",
                         "--regid=" + group, TERRACE_PROGRAM, "status",
                         "--daemon", daemon.socket()})
        .Wait();
  };
  // Whoever is not of the group cannot even connect.
  const ChildResult stranger = as_other("4712");
  EXPECT_EQ(stranger.exit_code, 1);
  EXPECT_THAT(stranger.errors, HasSubstr("EACCES"));
  const ChildResult member = as_other("4711");
  EXPECT_EQ(member.exit_code, 0) << member.errors;
  EXPECT_THAT(member.output, HasSubstr("uid 4712: 1 of 64 connections"));
  EXPECT_THAT(member.output, Not(HasSubstr("uid 0")));
}

TEST(TerracedTest, TheCommandLineShowsIt) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  const auto status = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {TERRACE_PROGRAM, "status", "--daemon",
                                      "unix:" + daemon.socket()};
    words.insert(words.end(), more.begin(), more.end());
    return ChildProcess(words).Wait();
  };
  const ChildResult text = status({});
  EXPECT_EQ(text.exit_code, 0) << text.errors;
  EXPECT_THAT(text.output, HasSubstr(absl::StrCat("serving, terraced ")));
  EXPECT_THAT(text.output, HasSubstr("dram: 0 bytes of 8 MiB used"));
  const ChildResult json = status({"--json"});
  EXPECT_EQ(json.exit_code, 0) << json.errors;
  EXPECT_THAT(json.output, HasSubstr(absl::StrCat("\"pid\": ", daemon.pid())));
  EXPECT_THAT(json.output, HasSubstr("\"connection_limit\": 64"));
  EXPECT_EQ(daemon.End().exit_code, 0);
  const ChildResult gone = status({});
  EXPECT_EQ(gone.exit_code, 1);
  EXPECT_THAT(gone.errors, HasSubstr(daemon.socket()));
  EXPECT_EQ(ChildProcess({TERRACE_PROGRAM, "status", "--daemon", "tcp:1"})
                .Wait()
                .exit_code,
            2);
}

}  // namespace
}  // namespace terrace
