// options.h on threads, huge pages and memory nodes: what the machine gives
// is had and reported, what it does not is refused.
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "base/threads/pool_threads.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/live_threads.h"
#include "tiers/memory/topology.h"

namespace terrace {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

std::set<int> Processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::set<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.insert(cpu);
  }
  return cpus;
}

// Leaves the process one processor, until it is destroyed.
class OneProcessor {
 public:
  explicit OneProcessor(int cpu) {
    EXPECT_EQ(sched_getaffinity(0, sizeof(before_), &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(cpu), &one);
    Allow(one);
  }
  ~OneProcessor() { Allow(before_); }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;

 private:
  // Every thread there is: a sanitiser has one of its own. One that was joined
  // may be listed for a moment, and be gone when it is its turn.
  static void Allow(const cpu_set_t& processors) {
    for (const auto& task :
         std::filesystem::directory_iterator("/proc/self/task")) {
      const pid_t thread = std::stoi(task.path().filename().string());
      if (sched_setaffinity(thread, sizeof(processors), &processors) != 0) {
        EXPECT_EQ(errno, ESRCH) << "thread " << thread;
      }
    }
  }

  cpu_set_t before_;
};

// The process has no transparent huge pages while this lives.
class NoHugePages {
 public:
  NoHugePages() { EXPECT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0); }
  ~NoHugePages() { EXPECT_EQ(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0); }
  NoHugePages(const NoHugePages&) = delete;
  NoHugePages& operator=(const NoHugePages&) = delete;
};

class MachineOptions : public testing::Test {
 protected:
  MachineOptions() {
    options_.host_budget_bytes = 8 << 20;
    options_.huge_pages = HugePages::kOff;
    options_.threads = 1;
  }
  std::unique_ptr<Runtime> MustCreate() {
    auto runtime = Runtime::Create(options_);
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return runtime.ok() ? *std::move(runtime) : nullptr;
  }
  absl::Status Refusal() { return Runtime::Create(options_).status(); }
  static std::string Message(const absl::Status& status) {
    return std::string(status.message());
  }

  // The processors of each of the pool's threads: every task waits until as
  // many run, so no thread has two.
  static std::vector<std::set<int>> ProcessorsByThread(Runtime& runtime) {
    const ThreadPool pool = runtime.thread_pool();
    const int threads = pool.size();
    Mutex mutex;
    CondVar changed;
    std::vector<std::set<int>> processors;
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    int ended = 0;
    for (int i = 0; i < threads; ++i) {
      ExecutorOf(pool).Run([&] {
        MutexLock lock(mutex);
        processors.push_back(Processors());
        changed.SignalAll();
        const auto all_here = [&] {
          return static_cast<int>(processors.size()) == threads;
        };
        EXPECT_TRUE(SystemClock().Await(mutex, changed, all_here, deadline));
        ++ended;
        changed.SignalAll();
      });
    }
    MutexLock lock(mutex);
    const auto all_ended = [&] { return ended == threads; };
    SystemClock().Await(mutex, changed, all_ended, absl::InfiniteFuture());
    return processors;
  }

  Options options_;
};

TEST_F(MachineOptions, ThePoolHasTheThreadsAskedFor) {
  for (const int threads : {1, 3}) {
    options_.threads = threads;
    const auto runtime = MustCreate();
    ASSERT_NE(runtime, nullptr);
    EXPECT_EQ(runtime->thread_pool().size(), threads);
    EXPECT_THAT(ProcessorsByThread(*runtime), SizeIs(threads));
  }
}

// The first runtime's end takes nothing from the other.
TEST_F(MachineOptions, APoolThatIsBroughtIsSharedAndOutlivesARuntime) {
  const int64_t before = LiveThreads();
  absl::StatusOr<ThreadPool> pool = ThreadPool::Create(3);
  ASSERT_TRUE(pool.ok()) << pool.status();
  options_.threads = 1;  // says nothing then
  options_.thread_pool = *pool;
  auto first = MustCreate();
  const auto second = MustCreate();
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_EQ(first->thread_pool().threads(), pool->threads());
  EXPECT_EQ(second->thread_pool().size(), 3);
  first.reset();
  *pool = options_.thread_pool = ThreadPool();
  EXPECT_THAT(ProcessorsByThread(*second), SizeIs(3));
  EXPECT_GE(LiveThreads(), before + 3);
}

TEST_F(MachineOptions, NoNumberOfThreadsIsOneForEachProcessorAndPinned) {
  options_.threads = 0;
  const auto runtime = MustCreate();
  ASSERT_NE(runtime, nullptr);
  std::set<int> all;
  for (const std::set<int>& one : ProcessorsByThread(*runtime)) {
    EXPECT_THAT(one, SizeIs(1));
    all.insert(one.begin(), one.end());
  }
  EXPECT_EQ(all, Processors());
}

TEST_F(MachineOptions, OnlyProcessorsThatTheProcessMayUseCount) {
  options_.threads = 0;
  const int last = *Processors().rbegin();
  const OneProcessor only(last);
  const auto runtime = MustCreate();
  ASSERT_NE(runtime, nullptr);
  EXPECT_EQ(runtime->thread_pool().size(), 1);
  EXPECT_THAT(ProcessorsByThread(*runtime), Each(std::set<int>{last}));
}

// Of two jobs of one thread each, both would be on the first processor.
TEST_F(MachineOptions, FewerThreadsThanProcessorsMayRunOnAll) {
  if (Processors().size() < 2) GTEST_SKIP() << "there is but one processor";
  options_.threads = static_cast<int>(Processors().size()) - 1;
  const auto runtime = MustCreate();
  ASSERT_NE(runtime, nullptr);
  EXPECT_THAT(ProcessorsByThread(*runtime), Each(Processors()));
}

TEST_F(MachineOptions, ANegativeNumberOfThreadsIsRefused) {
  options_.threads = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal())) << Refusal();
}

TEST_F(MachineOptions, RequiredHugePagesThatCannotBeHadAreUnavailable) {
  const NoHugePages none;
  options_.huge_pages = HugePages::kRequired;
  const absl::Status refusal = Refusal();
  EXPECT_TRUE(absl::IsUnavailable(refusal)) << refusal;
  EXPECT_THAT(Message(refusal), HasSubstr("huge pages are required"));
  EXPECT_THAT(Message(refusal), HasSubstr("0 of 8388608 bytes"));
}

TEST_F(MachineOptions, PreferredHugePagesThatCannotBeHadAreReported) {
  const NoHugePages none;
  options_.huge_pages = HugePages::kPreferred;
  const auto runtime = MustCreate();
  ASSERT_NE(runtime, nullptr);
  EXPECT_EQ(runtime->GetStats().host.huge_page_share, 0);
}

TEST_F(MachineOptions, ABudgetBelowAHugePageCannotRequireThem) {
  options_.host_budget_bytes = 1 << 20;
  options_.huge_pages = HugePages::kRequired;
  EXPECT_TRUE(absl::IsUnavailable(Refusal())) << Refusal();
}

class MemoryNode : public MachineOptions {
 protected:
  void SetUp() override {
    const absl::StatusOr<Topology> topology = ReadTopology();
    ASSERT_TRUE(topology.ok()) << topology.status();
    nodes_ = topology->nodes;
    ASSERT_FALSE(nodes_.empty());
  }

  std::vector<NumaNode> nodes_;
};

TEST_F(MemoryNode, TheOneAskedForIsBoundAndReportedAlsoAfterClose) {
  options_.numa_node = nodes_.front().os_index;
  const auto runtime = Runtime::Create(options_);
  if (absl::IsUnavailable(runtime.status())) {
    GTEST_SKIP() << "the kernel does not bind here: " << runtime.status();
  }
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  for (const bool closed : {false, true}) {
    const Stats stats = (*runtime)->GetStats();
    EXPECT_EQ(stats.host.numa_node_asked, *options_.numa_node) << closed;
    EXPECT_EQ(stats.host.numa_node_found, *options_.numa_node) << closed;
    const Time soon = absl::Now() + absl::Seconds(30);
    EXPECT_TRUE((*runtime)->Close(soon).ok());
  }
}

TEST_F(MemoryNode, OneThatIsNotThereIsUnavailableAndNamed) {
  options_.numa_node = 4095;
  const absl::Status refusal = Refusal();
  EXPECT_TRUE(absl::IsUnavailable(refusal)) << refusal;
  EXPECT_THAT(Message(refusal), HasSubstr("node 4095"));
}

TEST_F(MemoryNode, ANegativeOneIsRefused) {
  options_.numa_node = -1;
  const absl::Status refusal = Refusal();
  EXPECT_TRUE(absl::IsInvalidArgument(refusal)) << refusal;
  EXPECT_THAT(Message(refusal), HasSubstr("node -1"));
}

TEST_F(MemoryNode, NotAskedForItIsTheNearestAndNoneWhereThereIsOne) {
  const auto runtime = MustCreate();
  ASSERT_NE(runtime, nullptr);
  const Stats stats = runtime->GetStats();
  int expected = -1;
  for (const NumaNode& node : nodes_) {
    const std::set<int> of_node(node.cpus.begin(), node.cpus.end());
    const std::set<int> ours = Processors();
    const bool has_all =
        std::includes(of_node.begin(), of_node.end(), ours.begin(), ours.end());
    if (nodes_.size() > 1 && has_all) expected = node.os_index;
  }
  EXPECT_EQ(stats.host.numa_node_asked, expected);
  // Its bytes are somewhere, and where there is one node, there.
  if (nodes_.size() == 1 && stats.host.numa_node_found != -1) {
    EXPECT_EQ(stats.host.numa_node_found, nodes_.front().os_index);
  }
}

}  // namespace
}  // namespace terrace
