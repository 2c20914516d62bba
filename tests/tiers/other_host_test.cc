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
#include "tests/support/fuse/fuse_mount.h"
#include "tests/support/temporary_directory.h"
#include "tiers/disk/disk_file.h"
#include "tiers/disk/job_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
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
  // What a start on `path` finds, after it removed all that it may.
  static std::vector<std::string> Reclaim(const std::string& path) {
    const auto job = JobDirectory::Create(path);
    EXPECT_TRUE(job.ok()) << job.status();
    if (!job.ok()) return {};
    while ((*job)->Reclaim()) {
    }
    EXPECT_FALSE((*job)->MakeRoom());
    return (*job)->jobs_elsewhere();
  }
  // The name of a job of this host, and what in it names the host.
  static std::string OwnName(std::string* host) {
    TemporaryDirectory scratch;
    const auto job = JobDirectory::Create(scratch.path());
    EXPECT_TRUE(job.ok()) << job.status();
    const std::string name = scratch.Entries().at(0);
    *host = name.substr(name.find('-', 8) + 18);  // behind the random number
    return name;
  }

  FuseMount mount_;
};

TEST_F(OtherHostTest, ItsJobIsNeverTouchedAndIsTold) {
  const std::vector<std::vector<std::string>> kinds = {
      {}, {"lock"}, {"lock", "state"}};
  for (const std::string& name :
       {std::string(kOld) + "-node7" + kIds,
        std::string(kOld) + "-a-b.c_d-0" + kIds, std::string(kOld)}) {
    for (const auto& files : kinds) {
      const std::string left = mount_.path() + "/" + name;
      Leave(left, files);
      for (int start = 0; start < 2; ++start) {
        const auto told = Reclaim(mount_.path());
        EXPECT_THAT(told, SizeIs(1));
        EXPECT_THAT(told, Contains(AllOf(HasSubstr(left), HasSubstr("123"))));
        EXPECT_TRUE(fs::exists(left)) << name;
      }
      if (name != kOld) {
        const std::string host = name.substr(sizeof(kOld));
        EXPECT_THAT(Reclaim(mount_.path()),
                    Contains(HasSubstr(
                        host.substr(0, host.size() - sizeof(kIds) + 1))));
      }
      for (const std::string& file : files) {
        EXPECT_TRUE(fs::remove(left + "/" + file)) << name << " " << file;
      }
      EXPECT_TRUE(fs::remove(left));
    }
  }
}

TEST_F(OtherHostTest, ItsJobIsToldOfThePath) {
  const std::string left = mount_.path() + "/" + kOld + "-node7" + kIds;
  Leave(left, {"lock", "state"});
  const auto file = OpenDiskFile({.path = mount_.path()});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->info().jobs_elsewhere,
              testing::ElementsAre(left + ": of process 123 on node7"));
}

TEST_F(OtherHostTest, AJobOfThisHostThatWasKilledIsReclaimed) {
  std::string host;
  const std::string name = OwnName(&host);
  ASSERT_GT(host.size(), 34u) << name;
  const std::string machine = host.substr(0, host.size() - 16);
  const bool has_id = machine.find("-0000000000000000-") == std::string::npos;
  // Of this start of it, and of an earlier one.
  for (const std::string& owner : {host, machine + "0123456789abcdef"}) {
    if (owner != host && !has_id) continue;
    Leave(mount_.path() + "/" + kOld + "-" + owner, {"lock", "state"});
    EXPECT_THAT(Reclaim(mount_.path()), SizeIs(0)) << owner;
    EXPECT_TRUE(fs::is_empty(mount_.path())) << owner;
  }
}

// A host of the same name, as containers and images have, is another one.
TEST_F(OtherHostTest, ItsNameAloneMakesNoHost) {
  std::string host;
  OwnName(&host);
  const std::string name = host.substr(0, host.size() - 34);
  const std::string ids = host.substr(host.size() - 34);
  for (const std::string& owner : {name + kIds, "x" + name + ids}) {
    const std::string left = mount_.path() + "/" + kOld + "-" + owner;
    Leave(left, {"lock", "state"});
    EXPECT_THAT(Reclaim(mount_.path()), Contains(HasSubstr(left)));
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
    EXPECT_THAT(Reclaim(mount_.path()), SizeIs(0)) << name;
    EXPECT_TRUE(fs::exists(left)) << name;
    fs::remove_all(left);
  }
}

// A file system of this host's own: its locks tell, whoever left the job.
TEST(OwnFileSystemTest, AJobOfAnyHostIsReclaimed) {
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
      EXPECT_THAT((*job)->jobs_elsewhere(), SizeIs(0));
      EXPECT_THAT(path.Entries(), SizeIs(1)) << name;
    }
  }
}

}  // namespace
}  // namespace terrace
