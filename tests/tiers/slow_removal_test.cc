// A file system that takes its time over a removal holds up no job's start.
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/support/fuse/fuse_mount.h"
#include "tiers/disk/job_directory.h"
#include "tiers/disk/job_files.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

TEST(SlowRemovalTest, OtherStartsGoOnMeanwhile) {
  FuseMount mount;
  if (!mount.ok()) GTEST_SKIP() << mount.reason();
  const std::string stale = mount.path() + "/" + NewJobName();
  fs::create_directory(stale);
  for (const char* name : {"/lock", "/state"}) {
    std::ofstream(stale + name) << "theirs";
  }
  mount.Arm({.call = FuseCall::kRemove, .kind = FuseFault::Kind::kHold});
  std::thread removes([&] {
    const auto job = JobDirectory::Create(mount.path());
    EXPECT_TRUE(job.ok()) << job.status();
    while (job.ok() && (*job)->Reclaim()) {
    }
  });
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (mount.counts().faults == 0 && absl::Now() < end) {
    std::this_thread::yield();
  }
  EXPECT_GT(mount.counts().faults, 0) << "nothing is held";
  std::vector<std::unique_ptr<JobDirectory>> jobs;  // their ends are removals
  for (int i = 0; i < 3; ++i) {
    auto job = JobDirectory::Create(mount.path());
    EXPECT_TRUE(job.ok()) << job.status();
    if (!job.ok()) break;
    EXPECT_FALSE((*job)->Reclaim());  // another has it
    jobs.push_back(*std::move(job));
  }
  mount.Clear();
  removes.join();
  EXPECT_FALSE(fs::exists(stale));
  EXPECT_FALSE(fs::exists(stale + ".stale"));
}

}  // namespace
}  // namespace terrace
