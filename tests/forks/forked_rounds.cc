#include "tests/forks/forked_rounds.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <random>

#include "absl/strings/match.h"
#include "tests/support/fork_at_call.h"
#include "tests/support/open_descriptors.h"

namespace terrace {
namespace {

constexpr char kAllVariable[] = "TERRACE_FORKS";
constexpr int64_t kRounds = 20;  // without it
constexpr unsigned kLongestLifeSeconds = 60;

bool IsFull() { return std::getenv(kAllVariable) != nullptr; }

// What another thread of the parent may be reading just then, and what tells
// of the child.
bool IsOfNobody(const std::string& descriptor) {
  const std::string what = descriptor.substr(descriptor.find(' ') + 1);
  return absl::StartsWith(what, "/proc/") || absl::StartsWith(what, "/sys/") ||
         absl::StartsWith(what, "pipe:");
}

}  // namespace

void ForkedRounds::SetUp() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a child has the locks of the sanitiser's allocator";
#endif
  if (!ForkAtCall::OfThisProcess().ok()) {
    GTEST_SKIP() << "no filter of system calls here";
  }
  descriptors_ = OpenDescriptors();
}

void ForkedRounds::Do(const ForkedOperation& operation) {
  const int64_t calls = CountCalls(operation);
  const int64_t stride = IsFull() ? 1 : std::max<int64_t>(1, calls / kRounds);
  const int64_t first =
      1 + static_cast<int64_t>(std::random_device{}()) % stride;
  int rounds = 0;
  for (int64_t call = first; !HasFailure(); call += stride, ++rounds) {
    SCOPED_TRACE("a child at call " + std::to_string(call) + " of about " +
                 std::to_string(calls));
    if (!DoOnce(operation, call, static_cast<Afterlife>(rounds % 3))) break;
  }
  RecordProperty("rounds", std::to_string(rounds));
  EXPECT_GT(rounds,
            std::min<int64_t>(calls, kRounds) / (operation.calls_vary ? 4 : 2));
}

int64_t ForkedRounds::CountCalls(const ForkedOperation& operation) {
  operation.prepare();
  ForkAtCall& forks = ForkAtCall::OfThisProcess();
  forks.Arm(std::numeric_limits<int64_t>::max(), [] { return 0; });
  operation.run();
  const ForkAtCall::Made made = forks.Disarm();
  operation.look();
  return made.calls;
}

bool ForkedRounds::DoOnce(const ForkedOperation& operation, int64_t call,
                          Afterlife afterlife) {
  operation.prepare();
  int gate[2];
  EXPECT_EQ(pipe2(gate, O_CLOEXEC), 0);
  ForkAtCall& forks = ForkAtCall::OfThisProcess();
  forks.Arm(call,
            [&, told = gate[1]] { return Live(operation, afterlife, told); });
  operation.run();
  const pid_t child = forks.Disarm().child;
  close(gate[1]);
  if (child > 0) {
    char verdict = 0;
    EXPECT_EQ(read(gate[0], &verdict, 1), 1) << "the child ended, or hung";
    EXPECT_EQ(verdict, 'y');
  }
  operation.look();
  if (child > 0) {
    if (afterlife == Afterlife::kLives) kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    if (afterlife != Afterlife::kLives) {
      EXPECT_EQ(status, 0) << "as waitpid gives it";
    }
  }
  close(gate[0]);
  return child > 0;
}

int ForkedRounds::Live(const ForkedOperation& operation, Afterlife afterlife,
                       int told) {
  alarm(kLongestLifeSeconds);
  bool is_good = HasNothingOfItsParent() && operation.is_refused();
  if (afterlife == Afterlife::kWorks) is_good = is_good && operation.work();
  const char verdict = is_good ? 'y' : 'n';
  is_good = write(told, &verdict, 1) == 1 && is_good;
  while (afterlife == Afterlife::kLives) pause();
  operation.give_up();
  return is_good ? 0 : 1;
}

bool ForkedRounds::HasNothingOfItsParent() const {
  bool is_good = true;
  for (const std::string& each : OpenDescriptors()) {
    if (descriptors_.contains(each) || IsOfNobody(each)) continue;
    std::cerr << "a child has its parent's descriptor " << each << "\n";
    is_good = false;
  }
  return is_good;
}

}  // namespace terrace
