// A directory on a file system that fails as the test says, or stops.
//
//   FuseMount mount;
//   if (!mount.ok()) GTEST_SKIP() << mount.reason();
//   mount.Arm({.call = FuseCall::kRead, .kind = FuseFault::Kind::kError,
//              .value = EIO});
//
// Needs root and /dev/fuse. The server is a process of its own, which ends
// with this object, and with the test if that is killed; what the kernel still
// waits for then fails, and the file system is unmounted. One thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "tests/support/fuse/fuse_script.h"
#include "tests/support/temporary_directory.h"

namespace terrace {

struct FuseCounts {
  int64_t calls = 0;
  int64_t faults = 0;
};

class FuseMount {
 public:
  FuseMount();
  ~FuseMount();
  FuseMount(const FuseMount&) = delete;
  FuseMount& operator=(const FuseMount&) = delete;

  bool ok() const { return reason_.empty(); }
  const std::string& reason() const { return reason_; }  // to skip
  const std::string& path() const { return directory_.path(); }

  void Arm(const FuseFault& fault);
  // No more faults; what is held or delayed goes on.
  void Clear();
  FuseCounts counts();  // since the last Clear

  // It answers nothing, nor do Arm, Clear and counts, until Continue.
  void Stop();
  void Continue();
  // All that was asked of it fails, and all that will be.
  void Kill();

 private:
  std::string Ask(const std::string& line);
  std::string ReadLine();

  TemporaryDirectory directory_;
  std::string reason_;
  pid_t server_ = -1;
  int to_server_ = -1;
  int from_server_ = -1;
};

}  // namespace terrace
