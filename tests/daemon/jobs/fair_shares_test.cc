// Fair shares, against numbers that were worked out by hand, and against what
// defines them, over random claims.
#include "daemon/jobs/lending/fair_shares.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "base/bytes.h"
#include "gmock/gmock.h"

namespace terrace {
namespace {

using testing::ElementsAre;

constexpr int64_t kMib = 1 << 20;

ShareClaim Claim(uid_t uid, const char* job, int64_t bytes) {
  return {.job = {uid, job}, .bytes = bytes};
}

TEST(FairSharesTest, WhoClaimsLittleHasIt) {
  EXPECT_THAT(FairShares(64 * kMib, {}), ElementsAre());
  const ShareClaim both[] = {Claim(1, "a", 60 * kMib),
                             Claim(1, "b", 20 * kMib)};
  EXPECT_THAT(FairShares(100 * kMib, both), ElementsAre(60 * kMib, 20 * kMib));
  EXPECT_THAT(FairShares(64 * kMib, both), ElementsAre(44 * kMib, 20 * kMib));
  EXPECT_THAT(FairShares(32 * kMib, both), ElementsAre(16 * kMib, 16 * kMib));
  EXPECT_THAT(FairShares(0, both), ElementsAre(0, 0));
  EXPECT_THAT(FairShares(-kMib, both), ElementsAre(0, 0));
}

// What a user has is shared by its jobs, and what a job has by its processes.
TEST(FairSharesTest, EachLevelSharesAlike) {
  const ShareClaim all[] = {Claim(1, "a", 64 * kMib), Claim(2, "a", 64 * kMib),
                            Claim(2, "b", 64 * kMib), Claim(2, "b", 64 * kMib)};
  EXPECT_THAT(FairShares(64 * kMib, all),
              ElementsAre(32 * kMib, 16 * kMib, 8 * kMib, 8 * kMib));
}

TEST(FairSharesTest, WeightsAndQuotasCount) {
  ShareClaim one = Claim(1, "a", 64 * kMib);
  ShareClaim two = Claim(2, "a", 64 * kMib);
  two.of_user.weight = 3;
  EXPECT_THAT(FairShares(64 * kMib, {{one, two}}),
              ElementsAre(16 * kMib, 48 * kMib));
  two.of_user.most_bytes = 20 * kMib;
  EXPECT_THAT(FairShares(64 * kMib, {{one, two}}),
              ElementsAre(44 * kMib, 20 * kMib));
  two.of_job.most_bytes = 8 * kMib;
  EXPECT_THAT(FairShares(64 * kMib, {{one, two}}),
              ElementsAre(56 * kMib, 8 * kMib));
  two.of_job.most_bytes = -kMib;
  EXPECT_THAT(FairShares(64 * kMib, {{one, two}}), ElementsAre(64 * kMib, 0));
}

TEST(FairSharesTest, ClaimsMayBeAsLargeAsTheyLike) {
  const ShareClaim both[] = {Claim(1, "a", INT64_MAX),
                             Claim(1, "a", INT64_MAX)};
  EXPECT_THAT(FairShares(64 * kMib, both), ElementsAre(32 * kMib, 32 * kMib));
}

// Max-min: nobody has more than it claims; nothing is left that somebody
// claims, but for parts of blocks; and who has less than it claims has, for its
// weight, no less than anybody else.
TEST(FairSharesTest, WhatDefinesThemHolds) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    const size_t count = 1 + random() % 6;
    const auto bytes = static_cast<int64_t>(random() % (64 * kMib));
    std::vector<ShareClaim> claims;
    for (size_t i = 0; i < count; ++i) {
      ShareClaim claim = Claim(static_cast<uid_t>(i), "", 0);
      claim.bytes = static_cast<int64_t>(random() % (32 * kMib));
      claim.of_user.weight = static_cast<int64_t>(1 + random() % 4);
      claims.push_back(claim);
    }
    const std::vector<int64_t> shares = FairShares(bytes, claims);
    const auto block = static_cast<double>(kBlockBytes);
    int64_t claimed = 0;
    double least = 1e18;  // of those that want more, for their weight
    double most = 0;      // of all
    for (size_t i = 0; i < count; ++i) {
      const auto weight = static_cast<double>(claims[i].of_user.weight);
      const double level = static_cast<double>(shares[i]) / weight;
      EXPECT_GE(shares[i], 0);
      EXPECT_LE(shares[i], claims[i].bytes);
      claimed += claims[i].bytes;
      most = std::max(most, level);
      if (shares[i] < claims[i].bytes) least = std::min(least, level);
    }
    const int64_t had =
        std::accumulate(shares.begin(), shares.end(), int64_t{0});
    EXPECT_LE(had, bytes);
    EXPECT_GE(had, std::min(bytes, claimed) -
                       static_cast<int64_t>(count) * kBlockBytes);
    EXPECT_GE(least, most - block * static_cast<double>(count)) << round;
  }
}

}  // namespace
}  // namespace terrace
