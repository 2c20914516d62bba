// A daemon whose service manager keeps what its jobs have, so that one that was
// killed is followed by another that goes on.
#pragma once

#include <signal.h>

#include <string>

#include "gtest/gtest.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/daemon/server/running_daemon.h"

namespace terrace {

class RevivedDaemonTest : public testing::Test {
 protected:
  // `text`: of its configuration.
  explicit RevivedDaemonTest(const std::string& text = "")
      : daemon_(text, {.keeps = true}) {}
  void SetUp() override { ASSERT_TRUE(daemon_.Serves()); }

  void Kill() {
    daemon_.Kill(SIGKILL);
    daemon_.Wait();
  }
  void Revive() {
    Kill();
    daemon_.Start();
  }

  RunningDaemon daemon_;
};

}  // namespace terrace
