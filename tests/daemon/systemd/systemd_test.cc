#include "tests/daemon/systemd/systemd_test.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace terrace {
namespace {

constexpr char kService[] = "terraced.service";
constexpr char kSocket[] = "terraced.socket";
constexpr char kConfig[] = "/etc/terrace/terraced.toml";
constexpr absl::Duration kPatience = absl::Minutes(2);

}  // namespace

void SystemdTest::SetUp() {
  if (std::getenv("TERRACE_TEST_SYSTEMD") == nullptr) {
    GTEST_SKIP() << "no machine for this alone (TERRACE_TEST_SYSTEMD)";
  }
  ASSERT_TRUE(std::filesystem::exists("/run/systemd/system"));
  Configure();
  ASSERT_EQ(Systemctl({"start", kSocket}).exit_code, 0);
  ASSERT_EQ(Property("ActiveState"), "inactive");
}

void SystemdTest::TearDown() {
  if (std::getenv("TERRACE_TEST_SYSTEMD") == nullptr) return;
  if (HasFailure()) {
    std::fputs(Systemctl({"status", "--no-pager", "-l", "-n30", kService})
                   .output.c_str(),
               stdout);
  }
  Systemctl({"stop", kService, kSocket});
  Systemctl({"reset-failed"});
}

void SystemdTest::Configure(const std::string& more) {
  WriteConfig(absl::StrCat("tiers = ['dram=16MiB', 'nvme:", kServicePath,
                           "=32MiB']\ngroup = 'terrace'\nmetrics = 'unix:",
                           kMetricsSocket, "'\ndrain_seconds = 5\n", more));
}

void SystemdTest::WriteConfig(const std::string& text) {
  std::ofstream(kConfig) << text;
}

ChildResult SystemdTest::Systemctl(const std::vector<std::string>& words) {
  std::vector<std::string> command = {"/usr/bin/systemctl"};
  command.insert(command.end(), words.begin(), words.end());
  return ChildProcess(command).Wait();
}

std::string SystemdTest::Property(const std::string& name) {
  const ChildResult shown =
      Systemctl({"show", "--value", "-p", name, kService});
  EXPECT_EQ(shown.exit_code, 0) << shown.errors;
  return std::string(absl::StripAsciiWhitespace(shown.output));
}

pid_t SystemdTest::MainPid() {
  pid_t process = 0;
  EXPECT_TRUE(absl::SimpleAtoi(Property("MainPID"), &process));
  return process;
}

absl::StatusOr<DaemonStatus> SystemdTest::ServedBy(pid_t other_than) {
  const absl::Time deadline = absl::Now() + kPatience;
  absl::Status why = absl::UnavailableError("only the one before answers");
  while (absl::Now() < deadline) {
    absl::StatusOr<DaemonStatus> status = AskStatus(kControlSocket, deadline);
    if (status.ok() && status->pid != other_than) return status;
    if (!status.ok()) why = status.status();
    absl::SleepFor(absl::Milliseconds(20));
  }
  return absl::UnavailableError(why.message());
}

std::string SystemdTest::Read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string SystemdTest::StatusLine(pid_t process, const std::string& name) {
  for (absl::string_view line :
       absl::StrSplit(Read(absl::StrCat("/proc/", process, "/status")), '\n')) {
    if (absl::ConsumePrefix(&line, absl::StrCat(name, ":\t"))) {
      return std::string(line);
    }
  }
  return "";
}

void SystemdTest::Saw(const std::string& words) {
  std::printf("seen: %s\n", words.c_str());
  std::fflush(stdout);
}

}  // namespace terrace
