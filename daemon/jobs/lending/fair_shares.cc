#include "daemon/jobs/lending/fair_shares.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>

#include "absl/numeric/int128.h"
#include "base/bytes.h"

namespace terrace {
namespace {

struct Claimant {
  int64_t bytes = 0;
  int64_t weight = 1;
};

// Who claims least for its weight is served first, as nobody else's claim can
// lessen it.
std::vector<int64_t> Divide(int64_t bytes, absl::Span<const Claimant> all) {
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return absl::int128(all[a].bytes) * all[b].weight <
           absl::int128(all[b].bytes) * all[a].weight;
  });
  int64_t weights = 0;
  for (const Claimant& each : all) weights += each.weight;
  int64_t left = std::max(int64_t{0}, bytes);
  std::vector<int64_t> shares(all.size());
  for (const size_t i : order) {
    const auto part =
        static_cast<int64_t>(absl::int128(left) * all[i].weight / weights);
    shares[i] =
        all[i].bytes <= part ? all[i].bytes : RoundDown(part, kBlockBytes);
    left -= shares[i];
    weights -= all[i].weight;
  }
  return shares;
}

// What belongs together, in the order in which it comes.
struct Group {
  ShareLimit limit;
  std::vector<size_t> members;
};

Claimant ClaimOf(const Group& group, absl::Span<const Claimant> members) {
  Claimant claim{.weight = group.limit.weight};
  for (const size_t i : group.members) {
    claim.bytes += std::min(members[i].bytes, INT64_MAX - claim.bytes);
  }
  claim.bytes =
      std::min(claim.bytes, std::max<int64_t>(0, group.limit.most_bytes));
  return claim;
}

// Shares of the groups become those of their members.
std::vector<int64_t> DivideWithin(absl::Span<const Group> groups,
                                  absl::Span<const int64_t> shares,
                                  absl::Span<const Claimant> members) {
  std::vector<int64_t> divided(members.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    std::vector<Claimant> own;
    for (const size_t each : groups[i].members) own.push_back(members[each]);
    const std::vector<int64_t> parts = Divide(shares[i], own);
    for (size_t k = 0; k < parts.size(); ++k) {
      divided[groups[i].members[k]] = parts[k];
    }
  }
  return divided;
}

template <typename Key>
std::vector<Group> ValuesOf(std::map<Key, Group> groups) {
  std::vector<Group> values;
  for (auto& [key, group] : groups) values.push_back(std::move(group));
  return values;
}

std::vector<Claimant> ClaimsOf(absl::Span<const Group> groups,
                               absl::Span<const Claimant> members) {
  std::vector<Claimant> claims;
  for (const Group& each : groups) claims.push_back(ClaimOf(each, members));
  return claims;
}

}  // namespace

std::vector<int64_t> FairShares(int64_t bytes,
                                absl::Span<const ShareClaim> claims) {
  std::vector<Claimant> processes;
  std::map<JobName, Group> by_job;
  for (size_t i = 0; i < claims.size(); ++i) {
    processes.push_back({claims[i].bytes, 1});
    Group& job = by_job[claims[i].job];
    job.limit = claims[i].of_job;
    job.members.push_back(i);
  }
  std::map<uid_t, Group> by_user;
  size_t number = 0;
  for (const auto& [name, job] : by_job) {
    Group& user = by_user[name.uid];
    user.limit = claims[job.members.front()].of_user;
    user.members.push_back(number++);
  }
  const std::vector<Group> jobs = ValuesOf(std::move(by_job));
  const std::vector<Group> users = ValuesOf(std::move(by_user));
  const std::vector<Claimant> of_jobs = ClaimsOf(jobs, processes);
  const std::vector<int64_t> user_shares =
      Divide(bytes, ClaimsOf(users, of_jobs));
  const std::vector<int64_t> job_shares =
      DivideWithin(users, user_shares, of_jobs);
  return DivideWithin(jobs, job_shares, processes);
}

}  // namespace terrace
