// A block device over a file of zeros; detached with the object, or when the
// process dies. Needs root and loop devices.
//
//   LoopDevice device(8 << 20);
//   if (!device.ok()) GTEST_SKIP() << device.reason();
#pragma once

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"

namespace terrace {

class LoopDevice {
 public:
  explicit LoopDevice(int64_t size_bytes) {
    const std::string file = directory_.Write("backing", "");
    const int backing = open(file.c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_EQ(ftruncate(backing, size_bytes), 0);
    const int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0) {
      reason_ = std::string("no loop devices: ") + std::strerror(errno);
    }
    // Another process may take the free one first.
    for (int tries = 0; control >= 0 && tries < 16; ++tries) {
      if (Attach(ioctl(control, LOOP_CTL_GET_FREE), backing)) break;
    }
    if (control >= 0) close(control);
    close(backing);
  }
  ~LoopDevice() {
    if (fd_ >= 0) close(fd_);  // which detaches it, if it is the last
  }
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;

  bool ok() const { return fd_ >= 0; }
  const std::string& reason() const { return reason_; }  // to skip
  const std::string& path() const { return path_; }
  int fd() const { return fd_; }  // buffered, for looking and spoiling

 private:
  bool Attach(int index, int backing) {
    path_ = "/dev/loop" + std::to_string(index);
    const int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    loop_info64 info = {};
    info.lo_flags = LO_FLAGS_AUTOCLEAR;
    if (fd >= 0 && ioctl(fd, LOOP_SET_FD, backing) == 0) {
      if (ioctl(fd, LOOP_SET_STATUS64, &info) == 0) {
        fd_ = fd;
        return true;
      }
      ioctl(fd, LOOP_CLR_FD, 0);
    }
    reason_ = path_ + " cannot be had: " + std::strerror(errno);
    if (fd >= 0) close(fd);
    return false;
  }

  TemporaryDirectory directory_;
  std::string path_;
  std::string reason_;
  int fd_ = -1;
};

}  // namespace terrace
