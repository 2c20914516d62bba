#include "tests/daemon/server/running_daemon.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "daemon/client/control_client.h"

namespace terrace {
namespace {

constexpr size_t kFirstListened = 3;  // SD_LISTEN_FDS_START

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

RunningDaemon::~RunningDaemon() {
  child_.reset();  // it tells to the end
  ForgetKept();
  close(notices_);
}

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
                                     "/notices; ", setting_.before, "; ");
  std::string redirection = setting_.redirection;
  if (setting_.keeps) {
    std::vector<std::string> names;
    for (const auto& [name, descriptor] : Kept()) {
      // Moved, so that it has each once.
      absl::StrAppend(&redirection, " ", kFirstListened + names.size(), "<&",
                      descriptor, "-");
      names.push_back(name);
    }
    absl::StrAppend(&command, "export FDSTORE=256; ");
    if (!names.empty()) {
      absl::StrAppend(&command,
                      "export LISTEN_PID=$$ LISTEN_FDS=", names.size(),
                      " LISTEN_FDNAMES=", absl::StrJoin(names, ":"), "; ");
    }
  }
  Told();
  told_.clear();  // of one before
  absl::StrAppend(&command, "exec ");
  if (setting_.uid != 0) {
    absl::StrAppend(&command, "setpriv --clear-groups --reuid=", setting_.uid,
                    " --regid=", setting_.uid, " ");
  }
  absl::StrAppend(
      &command, setting_.program.empty() ? TERRACED_PROGRAM : setting_.program,
      " --config ", config_);
  if (setting_.owns_socket) absl::StrAppend(&command, " --socket ", socket_);
  child_ = std::make_unique<ChildProcess>(std::vector<std::string>{
      "/bin/bash", "-c", absl::StrCat(command, " ", redirection)});
}

void RunningDaemon::StartBeside() {
  before_ = std::move(child_);
  Start();
}

const std::map<std::string, int>& RunningDaemon::Kept() {
  Told();
  return kept_;
}

void RunningDaemon::ForgetKept(const std::string& part) {
  Told();
  std::erase_if(kept_, [&part](const auto& each) {
    if (!absl::StrContains(each.first, part)) return false;
    close(each.second);
    return true;
  });
}

// By sd_notify(3). A descriptor's own number is high, so that none of the first
// ones is another's.
void RunningDaemon::Hear(const std::string& words, int descriptor) {
  told_.push_back(words);
  std::string name;
  for (const absl::string_view line : absl::StrSplit(words, '\n')) {
    absl::string_view value = line;
    if (absl::ConsumePrefix(&value, "FDNAME=")) name = std::string(value);
  }
  const bool goes = absl::StrContains(words, "FDSTOREREMOVE=1");
  const auto found = kept_.find(name);
  if (goes && found != kept_.end()) {
    close(found->second);
    kept_.erase(found);
  }
  if (descriptor < 0) return;
  const bool comes = setting_.keeps && absl::StrContains(words, "FDSTORE=1");
  if (comes) kept_[name] = fcntl(descriptor, F_DUPFD, 500);
  close(descriptor);
}

const std::vector<std::string>& RunningDaemon::Told() {
  std::array<char, 4096> words;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
  while (true) {
    iovec bytes = {words.data(), words.size()};
    msghdr message = {};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t size = recvmsg(notices_, &message, MSG_DONTWAIT);
    if (size < 0) return told_;
    int descriptor = -1;
    const cmsghdr* const beside = CMSG_FIRSTHDR(&message);
    if (beside != nullptr && beside->cmsg_type == SCM_RIGHTS) {
      std::memcpy(&descriptor, CMSG_DATA(beside), sizeof(descriptor));
    }
    Hear(std::string(words.data(), static_cast<size_t>(size)), descriptor);
  }
}

bool RunningDaemon::WaitUntilTold(const std::string& words) {
  return child_->WaitUntil([&] { return WasTold(words); });
}

bool RunningDaemon::WasTold(const std::string& words) {
  return absl::c_any_of(Told(), [&](const std::string& each) {
    return absl::StrContains(each, words);
  });
}

bool RunningDaemon::Serves() { return WaitUntilTold("READY=1"); }

bool RunningDaemon::ServesWithin(absl::Duration patience) {
  const absl::Time end = SystemClock().Now() + patience;
  const auto is_ready = [this] { return WasTold("READY=1"); };
  child_->WaitUntil([&] { return is_ready() || SystemClock().Now() > end; });
  return is_ready();
}

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
