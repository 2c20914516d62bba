// The daemon as it is installed, under a systemd that is process 1 of a machine
// for tests alone, which TERRACE_TEST_SYSTEMD=1 says: it is configured,
// started, stopped and killed. Elsewhere the tests are skipped.
//
// Each test begins with a socket that listens and no daemon.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/running_daemon.h"
#include "tests/support/child_process.h"

namespace terrace {

inline constexpr char kControlSocket[] = "/run/terrace/control.sock";
inline constexpr char kMetricsSocket[] = "/run/terrace/metrics.sock";
inline constexpr char kServicePath[] = "/var/lib/terrace";

class SystemdTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Tiers, group and metrics, and what is added.
  static void Configure(const std::string& more = "");
  static void WriteConfig(const std::string& text);
  static ChildResult Systemctl(const std::vector<std::string>& words);
  // Of the service, as `systemctl show` has it.
  static std::string Property(const std::string& name);
  static pid_t MainPid();

  // How a daemon other than that one is, once it serves; a connection starts
  // one. Unavailable: none has come within two minutes.
  static absl::StatusOr<DaemonStatus> ServedBy(pid_t other_than = 0);
  static std::string Read(const std::string& path);
  // The line of /proc/PID/status.
  static std::string StatusLine(pid_t process, const std::string& name);

  static double SecondsSince(absl::Time begin) {
    return absl::ToDoubleSeconds(absl::Now() - begin);
  }
  // A line of the machine's report.
  static void Saw(const std::string& words);
};

}  // namespace terrace
