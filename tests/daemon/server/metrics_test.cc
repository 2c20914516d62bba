// What a daemon tells over HTTP: the requests are bytes of a raw socket, and
// the numbers are compared with what the test itself registered and wrote.
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/daemon/server/http_client.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kMebibyte = 1 << 20;
constexpr int64_t kPayload = 64 << 10;
constexpr int64_t kWithHeader = kPayload + 4096;  // with its header

// A daemon that tells its metrics at a Unix socket.
class MetricsTest : public testing::Test {
 protected:
  explicit MetricsTest(const std::string& text = "")
      : metrics_(directory_.path() + "/m"),
        daemon_(absl::StrCat("metrics = 'unix:", metrics_, "'\n", text)) {}

  void SetUp() override { ASSERT_TRUE(daemon_.Serves()); }

  HttpAnswer Ask(absl::string_view request) const {
    return Exchange(ConnectToPath(metrics_), request);
  }
  std::map<std::string, double> Scrape() const {
    const HttpAnswer answer = Get(metrics_, "/metrics");
    EXPECT_EQ(answer.status, 200);
    return SamplesOf(answer.body);
  }
  // The one sample whose labels have all of these.
  static double Find(const std::map<std::string, double>& samples,
                     const std::string& name,
                     const std::vector<std::string>& labels) {
    double found = -1;
    for (const auto& [key, value] : samples) {
      bool is_it = absl::StartsWith(key, name + "{");
      for (const std::string& each : labels) {
        is_it = is_it && absl::StrContains(key, each);
      }
      if (!is_it) continue;
      EXPECT_EQ(found, -1) << key;
      found = value;
    }
    EXPECT_NE(found, -1) << name;
    return found;
  }

  const TemporaryDirectory directory_;
  const std::string metrics_;
  RunningDaemon daemon_;
};

TEST_F(MetricsTest, ItTellsWhetherItServes) {
  EXPECT_EQ(Get(metrics_, "/healthz").body, "ok\n");
  const HttpAnswer ready = Get(metrics_, "/readyz");
  EXPECT_EQ(ready.status, 200);
  EXPECT_EQ(ready.body, "serving\n");
  EXPECT_THAT(ready.head, HasSubstr("Content-Length: 8\r\n"));
  EXPECT_EQ(Get(metrics_, "/other").status, 404);
  EXPECT_EQ(Get(metrics_, "/healthz?verbose").status, 200);
  const HttpAnswer head = Ask("HEAD /readyz HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(head.status, 200);
  EXPECT_THAT(head.head, HasSubstr("Content-Length: 8\r\n"));
  EXPECT_EQ(head.body, "");
  for (const char* const method : {"POST", "PUT", "DELETE", "OPTIONS"}) {
    const HttpAnswer refused = Ask(absl::StrCat(
        method, " /healthz HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"));
    EXPECT_EQ(refused.status, 405) << method;
    EXPECT_THAT(refused.head, HasSubstr("Allow: GET, HEAD\r\n"));
  }
}

TEST_F(MetricsTest, WhatIsNoRequestIsRefused) {
  for (const char* const bytes :
       {"\r\n\r\n", "GET\r\n\r\n", "GET /healthz\r\n\r\n",
        "GET /healthz HTTP/2\r\n\r\n", "GET healthz HTTP/1.1\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nno colon\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /healthz HTTP/1.1\r\n : empty\r\n\r\n", "\x16\x03\x01\n"}) {
    EXPECT_EQ(Ask(bytes).status, 400) << bytes;
  }
  // To the byte: one of 8 KiB is read, one of more is not.
  const std::string begin = "GET /healthz HTTP/1.1\r\nx: ";
  const std::string most =
      begin + std::string(8192 - begin.size() - 4, 'y') + "\r\n\r\n";
  EXPECT_EQ(Ask(most).status, 200);
  EXPECT_EQ(Ask(begin + std::string(8192 - begin.size(), 'y')).status, 431);
}

TEST_F(MetricsTest, ItsSocketIsItsUsers) {
  struct stat found = {};
  ASSERT_EQ(stat(metrics_.c_str(), &found), 0);
  EXPECT_TRUE(S_ISSOCK(found.st_mode));
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  EXPECT_EQ(daemon_.End().exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(metrics_));
}

// Each has a place until all are taken; then the oldest one goes.
TEST_F(MetricsTest, WhoIsSlowHoldsUpNobody) {
  std::vector<int> slow;
  for (int i = 0; i < 40; ++i) {
    slow.push_back(ConnectToPath(metrics_));
    ASSERT_GE(slow.back(), 0);
    SendAll(slow.back(),
            i % 2 == 0 ? "GET /metrics HT" : "GET /metrics HTTP/1.1\r\n\r\n");
  }
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Get(metrics_, "/readyz").status, 200);
    EXPECT_EQ(Get(metrics_, "/metrics").status, 200);
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  for (const int each : slow) close(each);
  EXPECT_EQ(Get(metrics_, "/readyz").status, 200);
}

TEST_F(MetricsTest, ARequestThatDoesNotComeEnds) {
  const int fd = ConnectToPath(metrics_);
  SendAll(fd, "GET /hea");
  const absl::Time begin = absl::Now();
  EXPECT_EQ(ReadToEnd(fd), "");  // its end, after 5 s
  const absl::Duration took = absl::Now() - begin;
  EXPECT_GT(took, absl::Seconds(4));
  EXPECT_LT(took, absl::Seconds(15));
  close(fd);
}

TEST_F(MetricsTest, AllIsThereBeforeAnythingHappened) {
  const auto samples = Scrape();
  EXPECT_EQ(samples.at("terrace_jobs"), 0);
  EXPECT_EQ(samples.at("terrace_connections"), 0);
  EXPECT_EQ(samples.at("terrace_loops_stopped"), 0);
  for (const char* const reason :
       {"limit", "permission", "message", "ending", "other"}) {
    EXPECT_EQ(samples.at(absl::StrCat("terrace_refusals_total{reason=\"",
                                      reason, "\"}")),
              0);
  }
  const std::string free = "state=\"free\"";
  EXPECT_EQ(Find(samples, "terrace_tier_bytes", {"\"dram\"", free}),
            8 * kMebibyte);
  EXPECT_EQ(Find(samples, "terrace_tier_bytes", {"\"nvme:", free}),
            8 * kMebibyte);
  for (const char* const cause : {"read", "write_back"}) {
    EXPECT_EQ(Find(samples, "terrace_stall_seconds_total",
                   {absl::StrCat("cause=\"", cause, "\"")}),
              0);
  }
  EXPECT_EQ(Find(samples, "terrace_io_bytes_total", {"written"}), 0);
  EXPECT_GT(samples.at("process_resident_memory_bytes"), kMebibyte);
  EXPECT_LT(samples.at("process_resident_memory_bytes"), 1024.0 * kMebibyte);
}

// By arithmetic of what the test registered: 12 tensors, of which 4 have
// contents that lie in memory alone, one is pinned and the others were never
// written.
TEST_F(MetricsTest, FillIsByTierJobAndState) {
  auto job = ConnectAs(daemon_, kMebibyte, "night");
  ASSERT_TRUE(job.ok()) << job.status();
  std::vector<TensorId> tensors;
  for (int i = 0; i < 12; ++i) {
    tensors.push_back(*RegisterOf(**job, absl::StrCat("t", i), kPayload));
  }
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(FillOf(**job, tensors[i], 1));
  auto held = (*job)->Acquire(tensors[0], Access::kRead, Later());
  ASSERT_TRUE(held.ok()) << held.status();
  const auto samples = Scrape();
  const auto fill = [&](const std::string& tier, const std::string& state) {
    return Find(samples, "terrace_tier_bytes",
                {tier, "job=\"night\"", absl::StrCat("uid=\"", getuid(), "\""),
                 absl::StrCat("state=\"", state, "\"")});
  };
  EXPECT_EQ(fill("\"dram\"", "pinned"), kWithHeader);
  EXPECT_EQ(fill("\"dram\"", "pinned") + fill("\"dram\"", "dirty") +
                fill("\"dram\"", "clean") + fill("\"dram\"", "free"),
            kMebibyte);
  // Each tensor has its place below, where dirty means that it is older.
  const double below = fill("\"nvme:", "dirty") + fill("\"nvme:", "clean");
  EXPECT_EQ(below, 12 * kWithHeader);
  EXPECT_GE(fill("\"nvme:", "clean"), 8 * kWithHeader);
  const double newer = fill("\"dram\"", "dirty");
  EXPECT_LE(newer, 3 * kWithHeader);
  EXPECT_EQ(Find(samples, "terrace_tier_used_bytes", {"\"dram\""}), kMebibyte);
  EXPECT_EQ(Find(samples, "terrace_job_processes", {"night"}), 1);
  EXPECT_EQ(samples.at("terrace_jobs"), 1);
  EXPECT_EQ(samples.at("terrace_runtimes_unanswered"), 0);
}

TEST_F(MetricsTest, WhatMovesIsCountedAndNeverFalls) {
  double written = 0;
  {
    auto job = ConnectAs(daemon_, kMebibyte, "a");
    ASSERT_TRUE(job.ok()) << job.status();
    std::vector<TensorId> tensors;
    for (int i = 0; i < 40; ++i) {
      tensors.push_back(*RegisterOf(**job, absl::StrCat("t", i), kPayload));
    }
    for (const TensorId each : tensors) ASSERT_TRUE(FillOf(**job, each, 3));
    for (const TensorId each : tensors) EXPECT_TRUE(Holds(**job, each, 3));
    const Stats stats = (*job)->GetStats();
    const auto samples = Scrape();
    written = Find(samples, "terrace_moved_bytes_total", {"to=\"nvme:"});
    // 40 that do not fit 1 MiB: at least 40 - 15 went down.
    EXPECT_GE(written, 25 * kWithHeader);
    EXPECT_GE(written, static_cast<double>(stats.bytes_written()));
    EXPECT_GE(Find(samples, "terrace_moved_bytes_total", {"from=\"nvme:"}),
              static_cast<double>(stats.bytes_read()));
    EXPECT_GE(Find(samples, "terrace_job_moved_bytes_total",
                   {"to=\"nvme:", "job=\"a\""}),
              25 * kWithHeader);
    EXPECT_GE(Find(samples, "terrace_reads_total", {"demand"}) +
                  Find(samples, "terrace_reads_total", {"ahead"}),
              25);
  }
  ASSERT_TRUE(daemon_.WaitUntil([&] { return UsedMemory(daemon_) == 0; }));
  const auto after = Scrape();
  EXPECT_GE(Find(after, "terrace_moved_bytes_total", {"to=\"nvme:"}), written);
  EXPECT_EQ(after.at("terrace_jobs"), 0);
}

class MetricsQuotaTest : public MetricsTest {
 protected:
  MetricsQuotaTest()
      : MetricsTest(
            "quota.job.tiers = ['dram=2MiB']\n"
            "quota.user.connections = 2\n") {}
};

TEST_F(MetricsQuotaTest, QuotasAndRefusalsAreTold) {
  auto job = ConnectAs(daemon_, kMebibyte, "a");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(absl::IsResourceExhausted(
      ConnectAs(daemon_, 2 * kMebibyte, "a").status()));  // of memory
  auto other = ConnectAs(daemon_, kMebibyte, "b");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(absl::IsResourceExhausted(
      ConnectAs(daemon_, kMebibyte, "c").status()));  // of connections
  const auto samples = Scrape();
  EXPECT_EQ(samples.at("terrace_refusals_total{reason=\"limit\"}"), 2);
  EXPECT_EQ(
      Find(samples, "terrace_quota_bytes", {"job=\"a\"", "tier=\"dram\""}),
      2 * kMebibyte);
  EXPECT_EQ(Find(samples, "terrace_quota_bytes", {"job=\"a\"", "tier=\"nvme:"}),
            8 * kMebibyte);
  EXPECT_EQ(Find(samples, "terrace_user_connections", {"uid"}), 2);
  EXPECT_EQ(Find(samples, "terrace_user_connection_limit", {"uid"}), 2);
  EXPECT_EQ(samples.at("terrace_connections"), 2);
}

struct Documented {
  std::string type;
  std::set<std::string> labels;
  friend auto operator<=>(const Documented&, const Documented&) = default;
};
using Metrics = std::map<std::string, Documented>;

// The rows of the table: | `name` | type | labels | ... |
Metrics DocumentedMetrics() {
  Metrics metrics;
  std::ifstream file(TERRACE_METRICS_DOCUMENT);
  EXPECT_TRUE(file.is_open()) << TERRACE_METRICS_DOCUMENT;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> cells = absl::StrSplit(line, '|');
    if (cells.size() < 5 || !absl::StrContains(cells[1], '`')) continue;
    const auto trimmed = [&](size_t i) {
      return std::string(absl::StripAsciiWhitespace(cells[i]));
    };
    Documented& row = metrics[std::string(
        absl::StripSuffix(absl::StripPrefix(trimmed(1), "`"), "`"))];
    row.type = trimmed(2);
    for (const absl::string_view label :
         absl::StrSplit(trimmed(3), ", ", absl::SkipEmpty())) {
      row.labels.emplace(label);
    }
  }
  return metrics;
}

Metrics ScrapedMetrics(const std::string& text) {
  Metrics metrics;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words[0] == "#" && words[1] == "TYPE") {
      metrics[words[2]].type = words[3];
    }
  }
  for (const auto& [sample, value] : SamplesOf(text)) {
    const size_t brace = sample.find('{');
    const std::string name = sample.substr(0, brace);
    EXPECT_TRUE(metrics.contains(name)) << sample;
    std::set<std::string> labels;
    for (size_t at = brace; at != std::string::npos;
         at = sample.find("\",", at + 1)) {
      const size_t begin = at + (sample[at] == '{' ? 1 : 2);
      labels.insert(sample.substr(begin, sample.find('=', begin) - begin));
    }
    if (metrics[name].labels.empty()) metrics[name].labels = labels;
    EXPECT_EQ(metrics[name].labels, labels) << sample;
  }
  return metrics;
}

TEST_F(MetricsTest, TheTableIsWhatIsTold) {
  auto job = ConnectAs(daemon_, kMebibyte, "a");
  ASSERT_TRUE(job.ok()) << job.status();
  const Metrics told = ScrapedMetrics(Get(metrics_, "/metrics").body);
  const Metrics documented = DocumentedMetrics();
  EXPECT_GT(documented.size(), 20u);
  for (const auto& [name, row] : documented) {
    const auto found = told.find(name);
    ASSERT_NE(found, told.end()) << name << " is documented, and not told";
    EXPECT_EQ(found->second.type, row.type) << name;
    EXPECT_EQ(found->second.labels, row.labels) << name;
  }
  for (const auto& [name, row] : told) {
    EXPECT_TRUE(documented.contains(name)) << name << " is not documented";
  }
}

// A page of another site whose name leads to the loopback sends its own Host.
TEST(MetricsPortTest, AnotherHostIsRefused) {
  const uint16_t port = FreePort();
  RunningDaemon daemon(absl::StrCat("metrics = '127.0.0.1:", port, "'\n"));
  ASSERT_TRUE(daemon.Serves());
  const auto status_of = [port](const std::string& host) {
    return Exchange(ConnectToPort(port),
                    absl::StrCat("GET /readyz HTTP/1.1\r\n", host, "\r\n"))
        .status;
  };
  EXPECT_EQ(status_of(absl::StrCat("Host: 127.0.0.1:", port, "\r\n")), 200);
  EXPECT_EQ(status_of("Host: localhost\r\n"), 200);
  EXPECT_EQ(status_of("host:LOCALHOST:80\r\n"), 200);
  EXPECT_EQ(status_of("Host: [::1]:9464\r\n"), 200);
  for (const char* const host :
       {"", "Host:\r\n", "Host: example.org\r\n",
        "Host: localhost.example.org\r\n", "Host: 127.0.0.1.example.org\r\n",
        "Host: localhost:\r\n", "Host: localhost:80@example.org\r\n"}) {
    EXPECT_EQ(status_of(host), 403) << host;
  }
}

TEST(MetricsPortTest, NothingIsToldWhereNothingIsSaid) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  const std::string tcp = absl::StrCat("/proc/", daemon.pid(), "/net/tcp");
  // Of the daemon's sockets none is one that listens at a port.
  std::set<std::string> own;
  const std::string fds = absl::StrCat("/proc/", daemon.pid(), "/fd");
  for (const auto& each : std::filesystem::directory_iterator(fds)) {
    std::error_code failed;
    own.insert(std::filesystem::read_symlink(each.path(), failed).string());
  }
  std::ifstream table(tcp);
  std::string line;
  ASSERT_TRUE(std::getline(table, line));
  while (std::getline(table, line)) {
    const std::vector<std::string> cells =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    EXPECT_FALSE(own.contains(absl::StrCat("socket:[", cells.at(9), "]")))
        << line;
  }
}

TEST(MetricsPortTest, APathOfAnotherIsLeft) {
  const TemporaryDirectory directory;
  const std::string path = directory.Write("m", "kept");
  RunningDaemon daemon(absl::StrCat("metrics = 'unix:", path, "'\n"));
  const ChildResult& ended = daemon.Wait();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.errors, HasSubstr("it is there, and no socket"));
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
}

}  // namespace
}  // namespace terrace
