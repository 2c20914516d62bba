// A program that trains and saves after each step, for tests that kill it:
//
//   saver DIRECTORY STEPS SAVE CALL [ERRNO [PARTS]]
//
// Goes on from DIRECTORY if there is a checkpoint, to STEPS steps. It kills
// itself in the save after step SAVE, before system call number CALL of those
// that change files (in the middle of one that writes); 0: never. With ERRNO
// the call fails with that instead, and so does the program, with exit code 3,
// if the save fails. Of two PARTS one has the parameters, one the state, as on
// two ranks. Prints "resumed N", "saved N" and, for each such call of
// the save, "call NAME FILE".
//
// The calls are counted by functions of libc's names in this program, which
// come before libc's own.
#include "tests/checkpoint/killed/saver.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

// Of the thread that saves; others do not count.
struct Calls {
  bool counted = false;
  long kill_at = 0;
  int error = 0;  // instead of the kill
  std::vector<std::string> names;
};
thread_local Calls* calls = nullptr;

// Ends here, or returns what a failed call does.
int Fail() {
  if (calls->error == 0) {
    syscall(SYS_kill, getpid(), SIGKILL);
    _exit(1);
  }
  errno = calls->error;
  return -1;
}

std::string NameOf(int fd) {
  char link[64], target[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, target, sizeof target);
  const std::string path(target, static_cast<size_t>(length > 0 ? length : 0));
  return path.substr(path.rfind('/') + 1);
}

// Whether this is the call to die in.
bool Count(const char* name, const std::string& file) {
  if (calls == nullptr || !calls->counted) return false;
  calls->names.push_back(std::string(name) + " " + file);
  return static_cast<long>(calls->names.size()) == calls->kill_at;
}

}  // namespace

extern "C" {

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  if (Count("pwrite", NameOf(fd))) {
    syscall(SYS_pwrite64, fd, data, size / 2, offset);
    return Fail();
  }
  return syscall(SYS_pwrite64, fd, data, size, offset);
}

int fsync(int fd) {
  if (Count("fsync", NameOf(fd))) return Fail();
  return static_cast<int>(syscall(SYS_fsync, fd));
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
  if (Count("fallocate", NameOf(fd))) return Fail();
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, length));
}

int openat(int directory, const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  if ((flags & O_CREAT) != 0 && Count("create", name)) return Fail();
  return static_cast<int>(syscall(SYS_openat, directory, name, flags, mode));
}

int renameat(int from, const char* name, int to,
             const char* new_name) noexcept {
  if (Count("rename", new_name)) return Fail();
  return static_cast<int>(syscall(SYS_renameat, from, name, to, new_name));
}

int unlinkat(int directory, const char* name, int flags) noexcept {
  if (Count("unlink", name)) return Fail();
  return static_cast<int>(syscall(SYS_unlinkat, directory, name, flags));
}

}  // extern "C"

namespace terrace {
namespace {

// The parameters by one rank, and the state by another.
absl::Status SaveInParts(Job& job, const std::string& directory,
                         const CheckpointValues& values) {
  const auto commit = CheckpointCommit::Begin(directory, values);
  if (!commit.ok()) return commit.status();
  const std::vector<CheckpointTensor> state = job.tensors();
  std::vector<CheckpointTensor> parameters = state;
  for (CheckpointTensor& tensor : parameters) {
    tensor.optimizer_parameter = kOfAnotherRank;
  }
  const auto first =
      WriteCheckpointPart(directory, {.parameters = parameters},
                          CheckpointPart::kParametersAndState, InAMinute());
  if (!first.ok()) return first.status();
  const auto second = WriteCheckpointPart(
      directory, {.parameters = state, .optimizer = &job.optimizer()},
      CheckpointPart::kState, InAMinute());
  if (!second.ok()) return second.status();
  return (*commit)->Commit({*first, *second}).status();
}

int Run(const std::string& directory, int64_t steps, int64_t save, long kill_at,
        int error, int parts) {
  Calls counter;
  calls = &counter;
  Job job(SaverModel(), kSaverArrangement);
  if (!job.ok()) return 1;
  auto checkpoint = Checkpoint::Open(directory);
  if (checkpoint.ok()) {
    const absl::Status loaded =
        (*checkpoint)->Load(job.tensors(), &job.optimizer(), InAMinute());
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", loaded.ToString().c_str());
      return 1;
    }
    std::printf("resumed %ld\n", static_cast<long>(job.optimizer().step()));
  } else if (!absl::IsNotFound(checkpoint.status())) {
    std::fprintf(stderr, "%s\n", checkpoint.status().ToString().c_str());
    return 1;
  }
  for (int64_t step = job.optimizer().step() + 1; step <= steps; ++step) {
    job.Step(step);
    counter.counted = step == save;
    counter.kill_at = kill_at;
    counter.error = error;
    const absl::Status saved =
        parts == 1 ? job.Save(directory, SaverValues(step))
                   : SaveInParts(job, directory, SaverValues(step));
    counter.counted = false;
    if (!saved.ok()) {
      std::fprintf(stderr, "%s\n", saved.ToString().c_str());
      return 3;
    }
    std::printf("saved %ld\n", static_cast<long>(step));
    std::fflush(stdout);
  }
  for (const std::string& call : counter.names) {
    std::printf("call %s\n", call.c_str());
  }
  return testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc < 5 || argc > 7) return 2;
  return terrace::Run(argv[1], std::atol(argv[2]), std::atol(argv[3]),
                      std::atol(argv[4]), argc >= 6 ? std::atoi(argv[5]) : 0,
                      argc == 7 ? std::atoi(argv[6]) : 1);
}
