// A root directory with the kernel's files as a test writes them.
#pragma once

#include <filesystem>
#include <string>

#include "machine/pseudo_files.h"
#include "tests/support/temporary_directory.h"

namespace terrace {

class PseudoRoot {
 public:
  // `path` starts with a slash.
  void Write(const std::string& path, const std::string& text) {
    directory_.Write(path.substr(1), text);
  }
  // A relative link at `path`, as those of /sys are, to another such path.
  void Link(const std::string& path, const std::string& target) {
    namespace fs = std::filesystem;
    const fs::path at = fs::path(directory_.path()) / path.substr(1);
    const fs::path to = fs::path(directory_.path()) / target.substr(1);
    fs::create_directories(at.parent_path());
    fs::create_symlink(to.lexically_relative(at.parent_path()), at);
  }
  // A block device's folder, found by its number and by its name.
  void AddDevice(const std::string& folder, const std::string& number) {
    const std::string name = folder.substr(folder.rfind('/') + 1);
    Write(folder + "/dev", number + "\n");
    Link("/sys/dev/block/" + number, folder);
    Link("/sys/class/block/" + name, folder);
  }

  PseudoFiles files() const { return PseudoFiles(directory_.path()); }

 private:
  TemporaryDirectory directory_;
};

}  // namespace terrace
