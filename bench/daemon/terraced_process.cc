#include "bench/daemon/terraced_process.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace::bench {
namespace {

absl::Status ErrnoOf(const char* call) {
  return absl::UnavailableError(absl::StrCat(call, ": ", std::strerror(errno)));
}

// Beside this program.
absl::StatusOr<std::string> Program() {
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  if (length <= 0) return ErrnoOf("readlink");
  const std::string program(self, static_cast<size_t>(length));
  return program.substr(0, program.rfind('/') + 1) + "terraced";
}

}  // namespace

absl::StatusOr<std::unique_ptr<TerracedProcess>> TerracedProcess::Start(
    const std::string& path, const std::string& config,
    const std::string& disk) {
  std::string directory = path + "/terraced-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) return ErrnoOf("mkdtemp");
  std::unique_ptr<TerracedProcess> daemon(
      new TerracedProcess(std::move(directory)));
  TERRACE_RETURN_IF_ERROR(daemon->Run(config, disk));
  return daemon;
}

absl::Status TerracedProcess::Run(const std::string& config,
                                  const std::string& disk) {
  const std::string folder = directory_ + "/disk";
  std::filesystem::create_directory(folder);
  const std::string file = directory_ + "/terraced.toml";
  std::ofstream(file) << "tiers = ['dram=256MiB', 'nvme:" << folder << "="
                      << disk << "']\n"
                      << config;
  TERRACE_ASSIGN_OR_RETURN(const std::string program, Program());
  const std::string socket = directory_ + "/socket";
  int log[2];
  if (pipe2(log, O_CLOEXEC) != 0) return ErrnoOf("pipe2");
  child_ = fork();
  if (child_ == 0) {
    dup2(log[1], STDERR_FILENO);
    execl(program.c_str(), program.c_str(), "--config", file.c_str(),
          "--socket", socket.c_str(), nullptr);
    _exit(127);
  }
  close(log[1]);
  log_ = log[0];
  if (child_ < 0) return ErrnoOf("fork");
  std::string said;
  char bytes[4096];
  while (!absl::StrContains(said, "serves ")) {
    const ssize_t size = read(log_, bytes, sizeof(bytes));
    if (size <= 0) {
      return absl::UnavailableError(
          absl::StrCat(program, " does not serve: ", said));
    }
    said.append(bytes, static_cast<size_t>(size));
  }
  return absl::OkStatus();
}

TerracedProcess::~TerracedProcess() {
  if (child_ > 0) {
    kill(child_, SIGTERM);
    waitpid(child_, nullptr, 0);
  }
  if (log_ >= 0) close(log_);
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

}  // namespace terrace::bench
