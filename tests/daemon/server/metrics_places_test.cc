// Who asks a daemon for its metrics while others take all the places: by raw
// sockets, and by another user's process.
#include <fcntl.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/daemon/server/http_client.h"
#include "tests/daemon/server/stopped_thread.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int kMany = 40;  // more than there are places

// Connections that say nothing, until their end.
class Idle {
 public:
  explicit Idle(uint16_t port) {
    for (int i = 0; i < kMany; ++i) all_.push_back(ConnectToPort(port));
  }
  ~Idle() {
    for (const int each : all_) close(each);
  }

 private:
  std::vector<int> all_;
};

std::string RequestOf(const std::string& path) {
  return absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

// Its numbers are as they were, as the server cannot be asked in time.
TEST(MetricsPlacesTest, WhoseRequestHasComeIsAnsweredBeforeItsPlaceIsTaken) {
  const uint16_t port = FreePort();
  RunningDaemon daemon(absl::StrCat("metrics = '127.0.0.1:", port, "'\n"));
  ASSERT_TRUE(daemon.Serves());
  const StoppedThread server(daemon.pid());
  if (!server.ok()) GTEST_SKIP() << "a child may not be traced here";
  const int fd = ConnectToPort(port);
  ASSERT_TRUE(SendAll(fd, RequestOf("/metrics")));
  const Idle others(port);
  const std::string answer = ReadToEnd(fd);
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\nterrace_build_info{"));
  close(fd);
}

TEST(MetricsPlacesTest, WhoAsksAtAPortThatIsFloodedIsAnswered) {
  const uint16_t port = FreePort();
  RunningDaemon daemon(absl::StrCat("metrics = '127.0.0.1:", port, "'\n"));
  ASSERT_TRUE(daemon.Serves());
  for (int round = 0; round < 20; ++round) {
    const Idle before(port);
    // Its request is there when the responder comes to it.
    auto responder =
        std::make_unique<StoppedThread>(daemon.pid(), "terrace-metrics");
    if (!responder->ok()) GTEST_SKIP() << "a child may not be traced here";
    const int fd = ConnectToPort(port);
    ASSERT_TRUE(SendAll(fd, RequestOf("/readyz")));
    const Idle behind(port);
    responder.reset();
    EXPECT_THAT(ReadToEnd(fd), HasSubstr("HTTP/1.1 200 OK\r\n"));
    close(fd);
  }
}

// Another user's process, which has that many connections at a path until the
// object's end.
class OtherUser {
 public:
  OtherUser(uid_t uid, const std::string& path, int connections) {
    EXPECT_EQ(pipe2(told_, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      close(ends_[1]);
      char word = setgroups(0, nullptr) == 0 && setresgid(uid, uid, uid) == 0 &&
                          setresuid(uid, uid, uid) == 0
                      ? 'y'
                      : 'n';
      for (int i = 0; i < connections; ++i) {
        if (ConnectToPath(path) < 0) word = 'n';
      }
      if (write(told_[1], &word, 1) != 1) _exit(1);
      _exit(read(ends_[0], &word, 1) == 0 ? 0 : 1);
    }
    char word = 0;
    EXPECT_EQ(read(told_[0], &word, 1), 1);
    is_connected_ = word == 'y';
  }
  ~OtherUser() {
    for (const int each : {told_[0], told_[1], ends_[0], ends_[1]}) {
      close(each);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    EXPECT_EQ(status, 0);
  }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

  bool is_connected() const { return is_connected_; }

 private:
  int told_[2];
  int ends_[2];
  pid_t child_ = 0;
  bool is_connected_ = false;
};

TEST(MetricsPlacesTest, AnotherUsersConnectionsTakeNobodysPlace) {
  if (getuid() != 0) GTEST_SKIP() << "it takes root to be two users";
  constexpr uid_t kOther = 4711;
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/m";
  RunningDaemon daemon(
      absl::StrCat("metrics = 'unix:", path, "'\ngroup = '", kOther, "'\n"));
  ASSERT_TRUE(daemon.Serves());
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0711));
  const int fd = ConnectToPath(path);
  const std::string request = RequestOf("/readyz");
  ASSERT_TRUE(SendAll(fd, request.substr(0, 10)));
  const OtherUser other(kOther, path, kMany);
  if (!other.is_connected()) GTEST_SKIP() << "the path is for one user";
  EXPECT_EQ(Get(path, "/readyz").status, 200);
  ASSERT_TRUE(SendAll(fd, request.substr(10)));
  EXPECT_THAT(ReadToEnd(fd), HasSubstr("HTTP/1.1 200 OK\r\n"));
  close(fd);
}

}  // namespace
}  // namespace terrace
