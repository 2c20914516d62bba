#include "tests/daemon/server/running_daemon.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/client/control_client.h"

namespace terrace {
namespace {

int ListenForNotices(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  TERRACE_CHECK(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto* const any = reinterpret_cast<const sockaddr*>(&address);
  TERRACE_CHECK(bind(fd, any, sizeof(address)) == 0);
  TERRACE_CHECK(chmod(path.c_str(), 0666) == 0);
  return fd;
}

}  // namespace

RunningDaemon::RunningDaemon(const std::string& text)
    : RunningDaemon(text, Setting()) {}

RunningDaemon::RunningDaemon(const std::string& text, const Setting& setting)
    : setting_(setting),
      path_(directory_.MakeDirectory("path")),
      socket_(directory_.MakeDirectory("run") + "/s"),
      config_(directory_.path() + "/terraced.toml"),
      notices_(ListenForNotices(directory_.path() + "/notices")) {
  if (setting_.uid != 0) {
    TERRACE_CHECK(chmod(directory_.path().c_str(), 0711) == 0);
    for (const std::string& each : {path_, directory_.path() + "/run"}) {
      TERRACE_CHECK(chown(each.c_str(), setting_.uid, setting_.uid) == 0);
    }
  }
  WriteConfig(text);
  Start();
}

RunningDaemon::~RunningDaemon() { close(notices_); }

void RunningDaemon::WriteConfig(const std::string& text) {
  directory_.Write(
      "terraced.toml",
      absl::StrCat("tiers = [",
                   setting_.tiers.empty()
                       ? absl::StrCat("'dram=8MiB', 'nvme:", path_, "=8MiB'")
                       : setting_.tiers,
                   "]\n", text));
}

void RunningDaemon::Start() {
  std::string command = absl::StrCat("export NOTIFY_SOCKET=", directory_.path(),
                                     "/notices; ", setting_.before, "; exec ");
  if (setting_.uid != 0) {
    absl::StrAppend(&command, "setpriv --clear-groups --reuid=", setting_.uid,
                    " --regid=", setting_.uid, " ");
  }
  absl::StrAppend(&command, TERRACED_PROGRAM, " --config ", config_);
  if (setting_.owns_socket) absl::StrAppend(&command, " --socket ", socket_);
  child_ = std::make_unique<ChildProcess>(std::vector<std::string>{
      "/bin/sh", "-c", absl::StrCat(command, " ", setting_.redirection)});
}

const std::vector<std::string>& RunningDaemon::Told() {
  std::array<char, 4096> words;
  while (true) {
    const ssize_t size =
        recv(notices_, words.data(), words.size(), MSG_DONTWAIT);
    if (size < 0) return told_;
    told_.emplace_back(words.data(), static_cast<size_t>(size));
  }
}

bool RunningDaemon::WaitUntilTold(const std::string& words) {
  return child_->WaitUntil([&] {
    return absl::c_any_of(Told(), [&](const std::string& each) {
      return absl::StrContains(each, words);
    });
  });
}

bool RunningDaemon::Serves() { return WaitUntilTold("READY=1"); }

absl::StatusOr<DaemonStatus> AskStatus(const std::string& path,
                                       absl::Time deadline) {
  absl::StatusOr<PacketSocket> socket = PacketSocket::Connect(path, deadline);
  if (!socket.ok()) return socket.status();
  return AskFor<DaemonStatus>(*socket, StatusRequest(), deadline);
}

absl::StatusOr<DaemonStatus> RunningDaemon::Status() const {
  return AskStatus(socket_, Soon());
}

const ChildResult& RunningDaemon::End() {
  Kill(SIGTERM);
  return Wait();
}

std::vector<std::string> RunningDaemon::OnPath() const {
  std::vector<std::string> names;
  for (const auto& each : std::filesystem::directory_iterator(path_)) {
    names.push_back(each.path().filename());
  }
  return names;
}

}  // namespace terrace
