// A group of the block controller that may read a device at a limited rate, in
// either version of control groups. Removed with this object; the process that
// joins it leaves it by dying.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "aio/io_error.h"

namespace terrace {

class Throttle {
 public:
  Throttle(dev_t device, int64_t bytes_per_second) {
    const std::string number = absl::StrCat(major(device), ":", minor(device));
    if (access("/sys/fs/cgroup/blkio/cgroup.procs", F_OK) == 0) {
      Make("/sys/fs/cgroup/blkio", "blkio.throttle.read_bps_device",
           absl::StrCat(number, " ", bytes_per_second));
      return;
    }
    const std::string root = "/sys/fs/cgroup";
    std::ifstream file(root + "/cgroup.controllers");
    std::string controller;
    while (file >> controller && controller != "io") {
    }
    if (controller != "io") {
      reason_ = "no controller of I/O, of either version, below " + root;
    } else if (Write(root + "/cgroup.subtree_control", "+io")) {
      Make(root, "io.max", absl::StrCat(number, " rbps=", bytes_per_second));
    }
  }
  ~Throttle() {
    if (!group_.empty()) rmdir(group_.c_str());
  }
  Throttle(const Throttle&) = delete;
  Throttle& operator=(const Throttle&) = delete;

  bool ok() const { return reason_.empty(); }
  const std::string& reason() const { return reason_; }  // to skip
  // This process, which has one thread.
  bool Join() {
    return Write(group_ + "/cgroup.procs", absl::StrCat(getpid()));
  }

 private:
  void Make(const std::string& parent, const std::string& file,
            const std::string& limit) {
    const std::string group = absl::StrCat(parent, "/terrace-test-", getpid());
    if (mkdir(group.c_str(), 0755) != 0) {
      reason_ = absl::StrCat(group, ": ", DescribeErrno(errno));
      return;
    }
    group_ = group;
    Write(absl::StrCat(group, "/", file), limit);
  }
  // One call: the kernel takes a setting as a whole.
  bool Write(const std::string& name, const std::string& text) {
    const int fd = open(name.c_str(), O_WRONLY | O_CLOEXEC);
    const bool written = fd >= 0 && write(fd, text.data(), text.size()) ==
                                        static_cast<ssize_t>(text.size());
    if (!written) {
      reason_ = absl::StrCat(name, " does not take '", text,
                             "': ", DescribeErrno(errno));
    }
    if (fd >= 0) close(fd);
    return written;
  }

  std::string group_;
  std::string reason_;
};

}  // namespace terrace
