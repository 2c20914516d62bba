// A directory of a test's own, empty at first and gone with it.
#pragma once

#include <stdlib.h>
#include <sys/mount.h>

#include <filesystem>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {

class TestDirectory {
 public:
  TestDirectory() : path_(testing::TempDir() + "/terrace-tiers-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
    EXPECT_FALSE(path_.empty()) << "no directory in " << testing::TempDir();
  }
  ~TestDirectory() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }

  // A tmpfs of that size over it; false where mounting is not allowed.
  bool MountTmpfs(const std::string& options, unsigned long flags = 0) {
    mounted_ =
        mount("tmpfs", path_.c_str(), "tmpfs", flags, options.c_str()) == 0;
    return mounted_;
  }

  std::vector<std::string> Entries() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

 private:
  std::string path_;
  bool mounted_ = false;
};

}  // namespace terrace
