// A daemon whose service manager keeps what its jobs have, so that one that was
// killed is followed by another that goes on.
#pragma once

#include <signal.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/daemon/server/running_daemon.h"
#include "tests/support/temporary_directory.h"

namespace terrace {

class RevivedDaemonTest : public testing::Test {
 protected:
  // `text`: of its configuration; `memory`: that it has, another than else, and
  // then another path.
  explicit RevivedDaemonTest(const std::string& text = "",
                             const std::string& memory = "")
      : daemon_(text, {.keeps = true, .tiers = TiersOf(memory)}) {}
  void SetUp() override { ASSERT_TRUE(daemon_.Serves()); }

  void Kill() {
    daemon_.Kill(SIGKILL);
    daemon_.Wait();
  }
  void Revive() {
    Kill();
    daemon_.Start();
  }

  const TemporaryDirectory path_;
  RunningDaemon daemon_;

 private:
  std::string TiersOf(const std::string& memory) const {
    if (memory.empty()) return "";
    return absl::StrCat("'dram=", memory, "', 'nvme:", path_.path(), "=8MiB'");
  }
};

}  // namespace terrace
