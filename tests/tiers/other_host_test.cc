// A file system that several hosts may have, whose locks may count on one of
// them only: from here another host's job looks like a dead one's, unlocked.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/expected_failure.h"
#include "tests/support/fuse_mount.h"
#include "tests/support/temporary_directory.h"
#include "tiers/disk/job_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

using testing::SizeIs;

constexpr char kOld[] = "terrace-123-0123456789abcdef";
constexpr char kIds[] = "-00112233445566aa-ffeeddccbbaa9988";

class OtherHostTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!mount_.ok()) GTEST_SKIP() << mount_.reason();
  }

  static void Leave(const std::string& directory,
                    const std::vector<std::string>& files) {
    fs::create_directory(directory);
    for (const std::string& file : files) {
      std::ofstream(directory + "/" + file) << "theirs";
    }
  }
  // A start on `path` that removes all that it may.
  static void Reclaim(const std::string& path) {
    const auto job = JobDirectory::Create(path);
    ASSERT_TRUE(job.ok()) << job.status();
    while ((*job)->Reclaim()) {
    }
    EXPECT_FALSE((*job)->MakeRoom());
  }
  // The name of a job of this host, and what in it names the host.
  static std::string OwnName(std::string* host) {
    TemporaryDirectory scratch;
    const auto job = JobDirectory::Create(scratch.path());
    EXPECT_TRUE(job.ok()) << job.status();
    const std::string name = scratch.Entries().at(0);
    const size_t random = name.find('-', 8) + 1;
    EXPECT_GT(name.size(), random + 16 + sizeof(kIds)) << "it names no host";
    *host = name.size() > random + 17 ? name.substr(random + 17)
                                      : std::string(kIds);
    return name;
  }

  FuseMount mount_;
};

TEST_F(OtherHostTest, ItsJobIsNeverTouched) {
  ExpectedFailure expected("what is unlocked here is taken for dead");
  const std::vector<std::vector<std::string>> kinds = {
      {}, {"lock"}, {"lock", "state"}};
  for (const std::string& name :
       {std::string(kOld) + "-node7" + kIds,
        std::string(kOld) + "-a-b.c_d-0" + kIds, std::string(kOld)}) {
    for (const auto& files : kinds) {
      const std::string left = mount_.path() + "/" + name;
      Leave(left, files);
      for (int start = 0; start < 2; ++start) {
        Reclaim(mount_.path());
        EXPECT_TRUE(fs::exists(left)) << name;
      }
      for (const std::string& file : files) {
        EXPECT_TRUE(fs::remove(left + "/" + file)) << name << " " << file;
      }
      EXPECT_TRUE(fs::remove(left));
    }
  }
}

TEST_F(OtherHostTest, AJobOfThisHostThatWasKilledIsReclaimed) {
  ExpectedFailure expected("a job's directory does not name its host");
  std::string host;
  const std::string name = OwnName(&host);
  ASSERT_GT(host.size(), 34u) << name;
  const std::string machine = host.substr(0, host.size() - 16);
  const bool has_id = machine.find("-0000000000000000-") == std::string::npos;
  // Of this start of it, and of an earlier one.
  for (const std::string& owner : {host, machine + "0123456789abcdef"}) {
    if (owner != host && !has_id) continue;
    Leave(mount_.path() + "/" + kOld + "-" + owner, {"lock", "state"});
    Reclaim(mount_.path());
    EXPECT_TRUE(fs::is_empty(mount_.path())) << owner;
  }
}

// A host of the same name, as containers and images have, is another one.
TEST_F(OtherHostTest, ItsNameAloneMakesNoHost) {
  ExpectedFailure expected("what is unlocked here is taken for dead");
  std::string host;
  OwnName(&host);
  const std::string name = host.substr(0, host.size() - 34);
  const std::string ids = host.substr(host.size() - 34);
  for (const std::string& owner : {name + kIds, "x" + name + ids}) {
    const std::string left = mount_.path() + "/" + kOld + "-" + owner;
    Leave(left, {"lock", "state"});
    Reclaim(mount_.path());
    EXPECT_TRUE(fs::exists(left + "/state"));
    fs::remove_all(left);
  }
}

TEST_F(OtherHostTest, WhatIsNoJobsNameIsNobodys) {
  for (const char* name :
       {"-node7", "-node7-00112233445566aa", "-node7-x-ffeeddccbbaa9988",
        "-00112233445566aa-ffeeddccbbaa9988", "--00112233445566aa",
        "-no/de-00112233445566aa-ffeeddccbbaa9988",
        "-no de-00112233445566aa-ffeeddccbbaa9988"}) {
    const std::string left = mount_.path() + "/" + kOld + name;
    fs::create_directories(left);
    Reclaim(mount_.path());
    EXPECT_TRUE(fs::exists(left)) << name;
    fs::remove_all(left);
  }
}

// A file system of this host's own: its locks tell, whoever left the job.
TEST(OwnFileSystemTest, AJobOfAnyHostIsReclaimed) {
  ExpectedFailure expected("a job's directory does not name its host");
  TemporaryDirectory path;
  for (const std::string& name :
       {std::string(kOld), kOld + ("-node7" + std::string(kIds))}) {
    for (const std::string suffix : {"", ".stale"}) {
      fs::create_directory(path.path() + "/" + name + suffix);
      std::ofstream(path.path() + "/" + name + suffix + "/lock") << "x";
      const auto job = JobDirectory::Create(path.path());
      ASSERT_TRUE(job.ok()) << job.status();
      while ((*job)->Reclaim()) {
      }
      EXPECT_THAT(path.Entries(), SizeIs(1)) << name;
    }
  }
}

}  // namespace
}  // namespace terrace
