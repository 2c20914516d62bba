// A process that is stopped and goes on (^Z and fg, a debugger): the device is
// not late for the time in which no thread looked, nor are an engine's threads,
// which stood still as well. On the engines of production.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "aio/io_paths.h"
#include "gtest/gtest.h"
#include "tests/aio/test_files.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kFileBytes = 64 * kMiB;
// More than a busy machine keeps one thread waiting while others look.
constexpr absl::Duration kTimeout = absl::Seconds(3);
constexpr absl::Duration kStopped = absl::Seconds(4);
constexpr int kStops = 2;

// For each byte from `asks`: all of the file in flight, then a stop, then all
// of it read, and a byte to `tells`. Its exit code: 0, all reads were good; 77:
// no such ring; 78: nothing was pending when it stopped.
int ReadInRounds(const std::string& kind, const TemporaryFile& file, int asks,
                 int tells) {
  auto engine = kind == "threads" ? MakeEngine(EngineKind::kThreads)
                                  : MakeRingOfKind(kind);
  if (!engine.ok()) return 77;
  IoQueueOptions options;
  options.in_flight_bytes = kFileBytes;
  options.piece_bytes = kMiB;
  options.adapts = false;
  IoPaths io(*std::move(engine), SystemClock());
  const int path = *io.AddPath(file.name(), file.fd(), options);
  const AlignedBuffer buffer(kFileBytes);
  for (char go = 0; read(asks, &go, 1) == 1;) {
    std::vector<Completion> ended;
    // Again, if all of it was read while this thread was kept waiting.
    for (int tries = 0; tries < 100 && io.pending() == 0; ++tries) {
      for (int64_t at = 0; at < kFileBytes; at += kMiB) {
        io.Enqueue(
            path, {IoDirection::kRead, IoClass::kDemand, buffer.data() + at, at,
                   kMiB, static_cast<uint64_t>(at), kTimeout});
      }
      io.Poll(&ended);
    }
    if (io.pending() == 0) return 78;
    raise(SIGSTOP);
    while (io.pending() > 0) {
      io.Wait(io.NextEvent());
      io.Poll(&ended);
    }
    for (const Completion& completion : ended) {
      if (completion.status.ok()) continue;
      std::fprintf(stderr, "%s\n", completion.status.ToString().c_str());
      return 1;
    }
    if (write(tells, "r", 1) != 1) return 1;
  }
  return 0;
}

class StoppedProcess : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Engines, StoppedProcess,
                         testing::Values("io_uring", "io_uring_bare",
                                         "threads"),
                         [](const auto& kind) {
                           return std::string(kind.param);
                         });

TEST_P(StoppedProcess, GoesOnWithoutALateTransfer) {
  const TemporaryFile file(kFileBytes);
  {
    AlignedBuffer content(kFileBytes);
    content.FillRandom(5);
    ASSERT_EQ(pwrite(file.fd(), content.data(), kFileBytes, 0), kFileBytes);
  }
  int asks[2];
  int tells[2];
  ASSERT_EQ(pipe(asks), 0);
  ASSERT_EQ(pipe(tells), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(asks[1]);
    close(tells[0]);
    std::_Exit(ReadInRounds(GetParam(), file, asks[0], tells[1]));
  }
  close(asks[0]);
  close(tells[1]);
  char said = 0;
  int status = 0;
  int stops = 0;
  for (; stops < kStops && write(asks[1], "g", 1) == 1; ++stops) {
    EXPECT_EQ(waitpid(child, &status, WUNTRACED), child);
    if (!WIFSTOPPED(status)) break;
    absl::SleepFor(kStopped);
    kill(child, SIGCONT);
    if (read(tells[0], &said, 1) != 1 || said != 'r') break;
  }
  close(asks[1]);
  if (!WIFEXITED(status)) {
    EXPECT_EQ(waitpid(child, &status, 0), child);
  }
  close(tells[0]);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no ring of this kind";
  EXPECT_EQ(WEXITSTATUS(status), 0) << "after stop " << stops + 1;
  EXPECT_EQ(stops, kStops);
}

}  // namespace
}  // namespace terrace
