// Where the models of one test have what is not in memory: a directory of the
// test. Its files are this process's, or those of a daemon where the program
// puts one between, once, before its first test.
//
//   OffloadFolder folder;
//   options.daemon = folder.daemon();
//   if (options.daemon.empty()) options.nvme_paths = {folder.path()};
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace terrace {

// A daemon of one test, which serves as long as the object is there.
class OffloadDaemon {
 public:
  virtual ~OffloadDaemon() = default;
  virtual std::string socket() const = 0;
  virtual pid_t pid() const = 0;
};
inline std::unique_ptr<OffloadDaemon> (*offload_daemon)(
    const std::string& directory) = nullptr;  // none

class OffloadFolder {
 public:
  OffloadFolder() {
    if (offload_daemon != nullptr) daemon_ = offload_daemon(path());
    before_ = Files();
  }

  const std::string& path() const { return directory_.path(); }
  // The daemon's socket; empty where there is none.
  std::string daemon() const { return has_daemon() ? daemon_->socket() : ""; }
  bool has_daemon() const { return daemon_ != nullptr; }
  // The process that writes there.
  pid_t writer() const { return has_daemon() ? daemon_->pid() : getpid(); }
  // No model has a file there.
  bool empty() const { return Files() == before_; }

 private:
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& each :
         std::filesystem::recursive_directory_iterator(path())) {
      files.push_back(each.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  const TemporaryDirectory directory_;
  std::unique_ptr<OffloadDaemon> daemon_;
  std::vector<std::string> before_;
};

}  // namespace terrace
