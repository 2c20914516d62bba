#include "bench/io/fio.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aio/io_error.h"
#include "base/status_macros.h"

namespace terrace::bench {
namespace {

// What a child says when it could not get so far as to be fio.
constexpr int kNoProgram = 127;
constexpr int kNoMount = 126;

// Its standard output; an error where it does not end with 0. `prepare` runs
// in the child, before the program, and says whether it may go on.
absl::StatusOr<std::string> OutputOf(const std::vector<std::string>& command,
                                     const std::function<bool()>& prepare) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no pipe: ", DescribeErrno(errno)));
  }
  std::vector<char*> arguments;
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int quiet = open("/dev/null", O_WRONLY);
    dup2(ends[1], STDOUT_FILENO);
    dup2(quiet, STDERR_FILENO);
    if (!prepare()) _exit(kNoMount);
    execvp(arguments[0], arguments.data());
    _exit(kNoProgram);
  }
  close(ends[1]);
  std::string output;
  char buffer[4096];
  ssize_t got = 0;
  while (child > 0 && (got = read(ends[0], buffer, sizeof(buffer))) != 0) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) output.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    return absl::UnavailableError(
        absl::StrCat("cannot run ", command[0], ": ", DescribeErrno(errno)));
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == kNoProgram) {
    return absl::UnavailableError(absl::StrCat(
        "there is no ", command[0], " here: scripts/bootstrap --fio"));
  }
  if (code == kNoMount) {
    return absl::UnavailableError(
        "no right to mount huge pages for its buffers: run as root");
  }
  if (code != 0) {
    return absl::UnavailableError(
        absl::StrCat(command[0], " ended with ", code, ": ", output));
  }
  return output;
}

// Mounts 64 MiB of huge pages on `folder`, in a mount namespace of the calling
// process' own, with a file for the buffers in it.
bool MountHugePages(const std::string& folder) {
  if (unshare(CLONE_NEWNS) != 0) return false;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return false;
  }
  if (mount("none", folder.c_str(), "tmpfs", 0, "huge=always,size=64m") != 0) {
    return false;
  }
  const int fd =
      open((folder + "/buf").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  return fd >= 0 && ftruncate(fd, 32 << 20) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Fio>> Fio::Create(int fd, int64_t size_bytes) {
  auto fio = std::unique_ptr<Fio>(new Fio);
  fio->file_ = absl::StrCat("/proc/", getpid(), "/fd/", fd);
  fio->size_bytes_ = size_bytes;
  char folder[] = "/tmp/terrace-bench-fio-XXXXXX";
  if (mkdtemp(folder) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("no folder in /tmp: ", DescribeErrno(errno)));
  }
  fio->folder_ = folder;
  TERRACE_ASSIGN_OR_RETURN(const std::string version,
                           OutputOf({"fio", "--version"}, [&] {
                             return MountHugePages(fio->folder_);
                           }));
  fio->version_ = std::string(absl::StripTrailingAsciiWhitespace(version));
  return fio;
}

Fio::~Fio() {
  if (!folder_.empty()) rmdir(folder_.c_str());
}

absl::StatusOr<Sample> Fio::Run(IoDirection direction) {
  const bool is_read = direction == IoDirection::kRead;
  const std::vector<std::string> command = {
      "fio",
      "--name=j",
      "--direct=1",
      absl::StrCat("--rw=", is_read ? "read" : "write"),
      absl::StrCat("--filename=", file_),
      "--bs=1m",
      "--iodepth=8",
      "--ioengine=io_uring",
      "--fixedbufs=1",
      "--registerfiles=1",
      absl::StrCat("--iomem=mmapshared:", folder_, "/buf"),
      "--scramble_buffers=0",  // it would cost more than the write itself
      absl::StrCat("--size=", size_bytes_),
      "--time_based",
      "--runtime=1s",
      "--thread",
      "--output-format=json"};
  TERRACE_ASSIGN_OR_RETURN(const std::string output, OutputOf(command, [&] {
                             return MountHugePages(folder_);
                           }));
  // It may say something before the JSON begins.
  const size_t begin = output.find('{');
  const nlohmann::json parsed =
      begin == std::string::npos
          ? nlohmann::json()
          : nlohmann::json::parse(output.substr(begin), nullptr, false);
  const nlohmann::json::json_pointer job("/jobs/0");
  if (parsed.is_discarded() || !parsed.contains(job)) {
    return absl::UnavailableError(absl::StrCat("fio's answer: ", output));
  }
  const nlohmann::json& answer = parsed[job];
  const nlohmann::json moved =
      answer.value(is_read ? "read" : "write", nlohmann::json::object());
  const double bytes = moved.value("io_bytes", 0.0);
  const double rate = moved.value("bw_bytes", 0.0);
  if (answer.value("error", 0) != 0 || bytes <= 0 || rate <= 0) {
    return absl::UnavailableError(absl::StrCat("fio failed: ", output));
  }
  // Of its job alone: the process around it costs 170 ms more.
  const double cpu_ms =
      (answer.value("usr_cpu", 0.0) + answer.value("sys_cpu", 0.0)) / 100 *
      answer.value("job_runtime", 0.0);
  return Sample{rate / (1 << 20), cpu_ms / (bytes / (1 << 30))};
}

}  // namespace terrace::bench
