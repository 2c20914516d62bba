// A directory of one test, empty at first and gone with the object.
#pragma once

#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {

class TemporaryDirectory {
 public:
  TemporaryDirectory() : path_(testing::TempDir() + "/terrace-test-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
    EXPECT_FALSE(path_.empty()) << "no directory in " << testing::TempDir();
  }
  ~TemporaryDirectory() {
    if (path_.empty()) return;
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
    std::error_code ignored;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all,
                                 ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

  // Writes a file, with the folders above it, and returns its path.
  std::string Write(const std::string& name, const std::string& bytes) const {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file.string();
  }

  // An empty directory below, and its path.
  std::string MakeDirectory(const std::string& name) const {
    const std::filesystem::path made = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(made);
    return made.string();
  }

  // Names of what is in it, sorted.
  std::vector<std::string> Entries() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  bool empty() const { return std::filesystem::is_empty(path_); }

  // A tmpfs over it, with options such as "size=1m"; false where mounting is
  // not allowed.
  bool MountTmpfs(const std::string& options, unsigned long flags = 0) {
    mounted_ =
        mount("tmpfs", path_.c_str(), "tmpfs", flags, options.c_str()) == 0;
    return mounted_;
  }

 private:
  std::string path_;
  bool mounted_ = false;
};

}  // namespace terrace
