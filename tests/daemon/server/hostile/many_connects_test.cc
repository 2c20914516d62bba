// Processes of jobs come and go, each with a whole life: memory, a tensor that
// is written and read, an end. The daemon has no more of anything after many of
// them than after a few, nor has the process that they are of. Threads are of
// this process, TERRACE_CONNECTS how many lives there are.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/support/live_threads.h"
#include "tests/support/open_descriptors.h"

namespace terrace {
namespace {

constexpr int kFew = 100;
constexpr int kAtOnce = 3;  // connected

int Lives() {
  const char* const given = std::getenv("TERRACE_CONNECTS");
  return given == nullptr ? 400 : std::atoi(given);
}

void Live(const RunningDaemon& daemon, const std::string& job, int number) {
  auto runtime = ConnectAs(daemon, 1 << 20, job);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const auto tensor = RegisterOf(**runtime, "a", 64 << 10);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  const auto seed = static_cast<uint8_t>(number);
  ASSERT_TRUE(FillOf(**runtime, *tensor, seed));
  ASSERT_TRUE(Holds(**runtime, *tensor, seed));
  if (number % 2 == 0) {
    EXPECT_TRUE((*runtime)->Close(Later()).ok());
  }
}

void LiveOften(const RunningDaemon& daemon, int lives) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kAtOnce; ++thread) {
    threads.emplace_back([&daemon, lives, thread] {
      for (int i = thread; i < lives && !testing::Test::HasFailure();
           i += kAtOnce) {
        Live(daemon, absl::StrCat("job ", thread), i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What a process has, as its kernel counts it.
struct Has {
  int64_t descriptors = 0;
  int64_t threads = 0;
  int64_t mappings = 0;
  int64_t own_memory = 0;

  bool IsAtMost(const Has& other) const {
    return descriptors <= other.descriptors && threads <= other.threads &&
           mappings <= other.mappings && own_memory <= other.own_memory;
  }
};

std::ostream& operator<<(std::ostream& out, const Has& has) {
  return out << has.descriptors << " descriptors, " << has.threads
             << " threads, " << has.mappings << " mappings, "
             << (has.own_memory >> 10) << " KiB of its own";
}

int64_t EntriesOf(const std::string& folder) {
  std::error_code ignored;
  const std::filesystem::directory_iterator all(folder, ignored);
  return std::distance(begin(all), end(all));
}

Has WhatHas(pid_t process) {
  const std::string of = absl::StrCat("/proc/", process, "/");
  Has has;
  has.descriptors = EntriesOf(of + "fd");
  has.threads = EntriesOf(of + "task");
  std::ifstream maps(of + "maps");
  for (std::string line; std::getline(maps, line);) ++has.mappings;
  std::ifstream status(of + "status");
  for (std::string word; status >> word;) {
    if (word == "RssAnon:" && status >> has.own_memory) break;
  }
  has.own_memory <<= 10;
  return has;
}

TEST(ManyConnectsTest, OfManyLivesNothingIsLeftThatAFewDoNotLeave) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  const auto is_alone = [&daemon] {
    const auto status = daemon.Status();
    return status.ok() && status->jobs.empty() &&
           status->users.at(0).connections == 1 &&
           status->tiers.at(0).used_bytes == 0 &&
           status->tiers.at(1).used_bytes == 0;
  };
  ASSERT_NO_FATAL_FAILURE(LiveOften(daemon, kFew));
  ASSERT_TRUE(daemon.WaitUntil(is_alone));
  Has few = WhatHas(daemon.pid());
  std::cout << "after " << kFew << ": " << few << std::endl;
  const size_t folders = daemon.OnPath().size();
  const size_t own_descriptors = OpenDescriptors().size();
  const int64_t own_threads = LiveThreads();

  ASSERT_NO_FATAL_FAILURE(LiveOften(daemon, Lives()));
  ASSERT_TRUE(daemon.WaitUntil(is_alone));
  // The allocator's arenas grow with how many threads have met, at times: by
  // less than a page and a mapping of each of a hundred lives.
  few.mappings += 8;
  few.own_memory += 2 << 20;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  few.own_memory = INT64_MAX;  // what was freed is kept for a while
  few.mappings = INT64_MAX;
#endif
  Has many;
  EXPECT_TRUE(daemon.WaitUntil([&] {
    many = WhatHas(daemon.pid());
    return many.IsAtMost(few);
  })) << many;
  std::cout << "after " << Lives() << " more: " << many << std::endl;
  EXPECT_LE(OpenDescriptors().size(), own_descriptors);
  EXPECT_LE(LiveThreads(), own_threads);
  EXPECT_LE(daemon.OnPath().size(), folders);
  const ChildResult& ended = daemon.End();
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
}

}  // namespace
}  // namespace terrace
