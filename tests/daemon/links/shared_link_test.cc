// Jobs that share a link, in virtual time, with the queues and engines that
// they have in a daemon.
#include "daemon/links/shared_link.h"

#include <algorithm>
#include <random>
#include <vector>

#include "tests/daemon/links/linked_host.h"

namespace terrace {
namespace {

using Load = LinkedJob::Load;

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

// The limit has adapted, and who came first is ahead no more.
void Settle(LinkedHost& host) { host.Pass(absl::Seconds(2)); }

absl::Duration P99(std::vector<absl::Duration> waits) {
  std::sort(waits.begin(), waits.end());
  return waits.at((waits.size() - 1) * 99 / 100);
}

TEST(SharedLink, TwoThatAreEqualHaveHalfEach) {
  LinkedHost host;
  for (const char* name : {"a", "b"}) host.Add({1, name}).Begin({});
  Settle(host);
  for (const double share : SharesOf(host, kWhile)) {
    EXPECT_NEAR(share, 0.5, 0.005);
  }
}

TEST(SharedLink, TheHeavierHasMore) {
  LinkedHost host;
  host.Add({1, "heavy"}, {1, 3}).Begin({});
  host.Add({1, "light"}, {1, 1}).Begin({});
  Settle(host);
  EXPECT_NEAR(SharesOf(host, kWhile)[0], 0.75, 0.005);
}

// One of them has three processes, another one user two jobs.
TEST(SharedLink, UsersShareThenTheirJobsThenTheirProcesses) {
  LinkedHost host;
  for (int i = 0; i < 3; ++i) host.Add({1, "many"}).Begin({});
  for (const char* name : {"a", "b"}) host.Add({2, name}).Begin({});
  Settle(host);
  const std::vector<double> shares = SharesOf(host, kWhile);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(shares[i], 1.0 / 6, 0.005);
  for (int i = 3; i < 5; ++i) EXPECT_NEAR(shares[i], 0.25, 0.005);
}

TEST(SharedLink, AllTogetherMoveWhatOneMoves) {
  LinkedHost alone;
  LinkedJob& only = alone.Add({1, "a"});
  only.Begin({});
  alone.Pass(kWhile);
  LinkedHost host;
  int64_t all = 0;
  for (const char* name : {"a", "b", "c"}) host.Add({1, name}).Begin({});
  host.Pass(kWhile);
  for (const auto& job : host.jobs) all += job->moved_bytes();
  EXPECT_GE(all, only.moved_bytes() * 99 / 100);
}

// What one would have alone; while a smaller one is tried, what the larger one
// let in is still there.
TEST(SharedLink, AllTogetherHaveNoMoreInFlightThanTheLimit) {
  IoQueueOptions options;
  options.in_flight_bytes = 1 << 20;
  options.piece_bytes = 512 << 10;
  options.adapts = false;
  LinkedHost host(options);
  for (const char* name : {"a", "b", "c", "d"}) host.Add({1, name}).Begin({});
  host.Pass(kWhile);
  EXPECT_EQ(host.most_in_flight, options.in_flight_bytes);
}

TEST(SharedLink, WhatOneDoesNotUseIsTheOthers) {
  LinkedHost host;
  host.Add({1, "heavy"}, {1, 1000}).Begin({.transfers = 0});
  host.Add({1, "light"}).Begin({});
  Settle(host);
  const int64_t before = host.jobs[1]->moved_bytes();
  host.Pass(kWhile);
  EXPECT_GE(host.jobs[1]->moved_bytes() - before,
            LinkedHost::kRate * 4 * 99 / 100);
}

TEST(SharedLink, OneThatFloodsHasItsShare) {
  LinkedHost host;
  for (const char* name : {"a", "b"}) host.Add({1, name}).Begin({});
  for (int i = 0; i < 4; ++i) {
    host.Add({1, "flood"}).Begin({.transfers = 64, .bytes = 4 << 20});
  }
  Settle(host);
  const std::vector<double> shares = SharesOf(host, kWhile);
  EXPECT_NEAR(shares[0], 1.0 / 3, 0.01);
  EXPECT_NEAR(shares[1], 1.0 / 3, 0.01);
}

TEST(SharedLink, WhoAsksForLittleDoesNotWaitForOneThatFloods) {
  LinkedHost host;
  for (int i = 0; i < 4; ++i) host.Add({1, "flood"}).Begin({.transfers = 64});
  const Load load = {
      .transfers = 1, .bytes = 64 << 10, .pause = absl::Milliseconds(3)};
  for (const char* name : {"a", "b"}) host.Add({1, name}).Begin(load);
  Settle(host);
  const size_t before = host.jobs[4]->waits().size();
  host.Pass(kWhile);
  const std::vector<absl::Duration>& all = host.jobs[4]->waits();
  const std::vector<absl::Duration> waits(
      all.begin() + static_cast<ptrdiff_t>(before), all.end());
  ASSERT_GT(waits.size(), 500u);
  EXPECT_LE(P99(waits),
            2 * absl::Seconds(host.link.use().limit_bytes) / LinkedHost::kRate);
}

// Of jobs that have not had their shares.
TEST(SharedLink, DemandGoesBeforeWhatOthersWriteBack) {
  LinkedHost host;
  host.Add({1, "writes"})
      .Begin({.transfers = 64,
              .direction = IoDirection::kWrite,
              .io_class = IoClass::kWriteBack});
  host.Add({1, "fetches"})
      .Begin({.transfers = 64, .io_class = IoClass::kPrefetch});
  host.Add({1, "demands"})
      .Begin({.transfers = 1,
              .bytes = 256 << 10,
              .pause = absl::Milliseconds(10)});
  Settle(host);
  EXPECT_LE(P99(host.jobs[2]->waits()),
            2 * absl::Seconds(host.link.use().limit_bytes) / LinkedHost::kRate);
}

// Reads of one and writes of another, on a device that does both at once.
TEST(SharedLink, ReadersAndWritersHaveTheirShares) {
  LinkedHost host;
  host.Add({1, "reads"}).Begin({});
  host.Add({1, "writes"})
      .Begin(
          {.direction = IoDirection::kWrite, .io_class = IoClass::kWriteBack});
  Settle(host);
  EXPECT_NEAR(SharesOf(host, kWhile)[0], 0.5, 0.02);
}

TEST(SharedLink, OtherWeightsHoldForWhoIsThere) {
  LinkedHost host;
  for (const char* name : {"a", "b"}) host.Add({1, name}).Begin({});
  Settle(host);
  host.link.SetWeights([](const SharedLink::Job& job) {
    return SharedLink::Weights{1, job.name == "a" ? 9 : 1};
  });
  host.Pass(absl::Milliseconds(100));
  EXPECT_NEAR(SharesOf(host, kWhile)[0], 0.9, 0.005);
}

// Whatever it had: room that was kept for it, pieces under way.
TEST(SharedLink, WhatLeavesGivesAllBack) {
  LinkedHost host;
  for (const char* name : {"a", "b"}) host.Add({1, name}).Begin({});
  Settle(host);
  LinkedJob& gone = *host.jobs[0];
  gone.Freeze();
  host.Pass(absl::Milliseconds(2));  // its turn comes, and it does not
  gone.Abandon();
  const int64_t before = host.jobs[1]->moved_bytes();
  host.Pass(kWhile);
  EXPECT_GE(host.jobs[1]->moved_bytes() - before,
            LinkedHost::kRate * 4 * 98 / 100);
  host.jobs[1]->Stop();
  while (host.jobs[1]->pending() > 0) ASSERT_TRUE(host.Advance());
  EXPECT_EQ(host.link.use().in_flight_bytes, 0);
}

// Of the stopped one, pieces under way count until it has been silent for long;
// a turn that it does not take is the next one's at once.
TEST(SharedLink, OneWhoseThreadHasStoppedHoldsUpNobody) {
  LinkedHost host;
  for (const char* name : {"a", "b", "c"}) host.Add({1, name}).Begin({});
  Settle(host);
  host.jobs[0]->Freeze();
  host.Pass(absl::Milliseconds(50));
  host.Pass(SharedLink::kSilence + absl::Seconds(2));
  const int64_t before =
      host.jobs[1]->moved_bytes() + host.jobs[2]->moved_bytes();
  host.Pass(kWhile);
  EXPECT_GE(host.jobs[1]->moved_bytes() + host.jobs[2]->moved_bytes() - before,
            LinkedHost::kRate * 4 * 98 / 100);
  // It comes back, and has its share.
  host.jobs[0]->Thaw();
  host.Pass(absl::Milliseconds(200));
  for (const double share : SharesOf(host, kWhile)) {
    EXPECT_NEAR(share, 1.0 / 3, 0.01);
  }
}

// One that has nothing in flight, and whose turn has come.
TEST(SharedLink, ATurnThatIsNotTakenIsTheNextOnes) {
  IoQueueOptions options;
  options.in_flight_bytes = options.piece_bytes = 1 << 20;
  options.adapts = false;
  LinkedHost host(options);
  LinkedJob& first = host.Add({1, "first"});
  LinkedJob& stopped = host.Add({1, "stopped"});
  LinkedJob& last = host.Add({1, "last"});
  first.Begin({.transfers = 1});
  first.Stop();
  ASSERT_TRUE(host.Advance());
  stopped.Begin({.transfers = 1});
  stopped.Turn();
  stopped.Freeze();
  last.Begin({.transfers = 1});
  last.Stop();
  const absl::Time start = host.clock.Now();
  while (last.pending() > 0) ASSERT_TRUE(host.Advance());
  EXPECT_EQ(host.link.use().expired_turns, 1);
  EXPECT_LE(host.clock.Now() - start,
            SharedLink::kGrantPatience + absl::Milliseconds(6));
  // It asks again when it turns.
  stopped.Thaw();
  stopped.Stop();
  while (stopped.pending() > 0) ASSERT_TRUE(host.Advance());
  EXPECT_EQ(host.link.use().in_flight_bytes, 0);
}

// Transfers of all kinds come, are raised and are cancelled, threads stop and
// go on: each ends once, nothing is kept, and nobody is forgotten.
TEST(SharedLink, WhateverJobsDoAllEndAndNothingIsKept) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    LinkedHost host;
    for (int i = 0; i < 5; ++i) {
      host.Add({static_cast<uint32_t>(i % 2), i % 3 == 0 ? "a" : "b"},
               {1 + i % 2, 1 + i})
          .Begin({.transfers = static_cast<int>(1 + random() % 12),
                  .bytes = 4096 * static_cast<int64_t>(1 + random() % 800),
                  .direction = random() % 2 == 0 ? IoDirection::kRead
                                                 : IoDirection::kWrite,
                  .io_class = static_cast<IoClass>(random() % kIoClasses),
                  .pause = absl::Milliseconds(random() % 3)});
    }
    for (int i = 0; i < 400; ++i) {
      LinkedJob& job = *host.jobs[random() % host.jobs.size()];
      const uint64_t tag = 1 + random() % 60;
      switch (random() % 12) {
        case 0:
          job.io().Cancel(0, tag);
          break;
        case 1:
          job.io().Promote(0, tag, IoClass::kDemand);
          break;
        case 2:
          job.Freeze();
          break;
        case 3:
          job.Thaw();
          break;
        default:
          if (!host.Advance()) job.Thaw();
      }
    }
    for (const auto& job : host.jobs) {
      job->Thaw();
      job->Stop();
    }
    const auto pending = [&] {
      int64_t all = 0;
      for (const auto& job : host.jobs) all += job->pending();
      return all;
    };
    while (pending() > 0) ASSERT_TRUE(host.Advance()) << "all wait for ever";
    EXPECT_EQ(host.link.use().in_flight_bytes, 0);
  }
}

// Each is woken when it waits: none of them looks again and again.
TEST(SharedLink, WhoWaitsIsWokenOnceForEachTurn) {
  LinkedHost host;
  for (const char* name : {"a", "b"}) host.Add({1, name}).Begin({});
  Settle(host);
  const int64_t moved = host.jobs[0]->moved_bytes();
  const int wakes = host.jobs[0]->wakes();
  host.Pass(kWhile);
  const int64_t pieces = (host.jobs[0]->moved_bytes() - moved) / (256 << 10);
  EXPECT_LE(host.jobs[0]->wakes() - wakes, pieces);
}

}  // namespace
}  // namespace terrace
