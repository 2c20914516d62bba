// Jobs that share a link, in virtual time, with the queues and engines that
// they have in a daemon.
#include "daemon/links/shared_link.h"

#include <algorithm>
#include <random>

#include "tests/daemon/links/linked_host.h"

namespace terrace {
namespace {

constexpr absl::Duration kWhile = absl::Seconds(4);

// Of what all have moved meanwhile.
std::vector<double> SharesOf(LinkedHost& host, absl::Duration time) {
  std::vector<int64_t> before;
  for (const auto& job : host.jobs) before.push_back(job->moved_bytes());
  host.Pass(time);
  std::vector<double> shares;
  double all = 0;
  for (size_t i = 0; i < host.jobs.size(); ++i) {
    shares.push_back(
        static_cast<double>(host.jobs[i]->moved_bytes() - before[i]));
    all += shares.back();
  }
  for (double& each : shares) each /= all;
  return shares;
}

TEST(SharedLink, TwoThatAreEqualHaveHalfEach) {
  LinkedHost host;
  for (const char* name : {"a", "b"}) host.Add({1, name}).Begin({});
  host.Pass(absl::Milliseconds(200));
  for (const double share : SharesOf(host, kWhile))
    EXPECT_NEAR(share, 0.5, 0.005);
}

TEST(SharedLink, TheHeavierHasMore) {
  LinkedHost host;
  host.Add({1, "heavy"}, {1, 3}).Begin({});
  host.Add({1, "light"}, {1, 1}).Begin({});
  host.Pass(absl::Milliseconds(200));
  const std::vector<double> shares = SharesOf(host, kWhile);
  EXPECT_NEAR(shares[0], 0.75, 0.005);
  EXPECT_NEAR(shares[1], 0.25, 0.005);
}

}  // namespace
}  // namespace terrace
