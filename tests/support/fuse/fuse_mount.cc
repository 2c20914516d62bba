#include "tests/support/fuse/fuse_mount.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr int kPatienceMs = 20'000;

}  // namespace

FuseMount::FuseMount() {
  if (access("/dev/fuse", R_OK | W_OK) != 0) {
    reason_ = "/dev/fuse is not there or not for this user";
    return;
  }
  int in[2];
  int out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
    reason_ = "no pipes";
    return;
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string program = TERRACE_FUSE_SERVER;
  std::string mount_point = directory_.path();
  char* const arguments[] = {program.data(), mount_point.data(), nullptr};
  const int error = posix_spawn(&server_, program.c_str(), &actions, nullptr,
                                arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  to_server_ = in[1];
  from_server_ = out[0];
  EXPECT_EQ(error, 0) << program;
  if (error != 0) server_ = -1;
  const std::string first = error == 0 ? ReadLine() : "it did not start";
  if (first != "mounted") reason_ = "no file system of our own: " + first;
}

FuseMount::~FuseMount() {
  Kill();
  if (ok()) umount2(path().c_str(), MNT_DETACH);
  for (const int fd : {to_server_, from_server_}) {
    if (fd >= 0) close(fd);
  }
}

void FuseMount::Arm(const FuseFault& fault) {
  EXPECT_EQ(Ask(FuseFaultLine(fault)), "ok");
}

void FuseMount::Clear() { EXPECT_EQ(Ask("clear"), "ok"); }

FuseCounts FuseMount::counts() {
  std::istringstream words(Ask("count"));
  std::string word;
  FuseCounts counts;
  EXPECT_TRUE(words >> word >> counts.calls >> counts.faults);
  return counts;
}

void FuseMount::Stop() {
  ASSERT_EQ(kill(server_, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(waitpid(server_, &status, WUNTRACED), server_);
  ASSERT_TRUE(WIFSTOPPED(status));
}

void FuseMount::Continue() { ASSERT_EQ(kill(server_, SIGCONT), 0); }

void FuseMount::Kill() {
  if (server_ <= 0) return;
  kill(server_, SIGKILL);
  waitpid(server_, nullptr, 0);
  server_ = -1;
}

std::string FuseMount::Ask(const std::string& line) {
  const std::string text = line + "\n";
  if (write(to_server_, text.data(), text.size()) < 0) return "it is gone";
  return ReadLine();
}

std::string FuseMount::ReadLine() {
  std::string line;
  for (char c = 0;;) {
    pollfd waited = {from_server_, POLLIN, 0};
    if (poll(&waited, 1, kPatienceMs) <= 0) return line + " (no answer)";
    if (read(from_server_, &c, 1) != 1) return line + " (it ended)";
    if (c == '\n') return line;
    line += c;
  }
}

}  // namespace terrace
