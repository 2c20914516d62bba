// Loops of a daemon that come and go, and what is left of them, by a clock that
// the test turns.
#include "daemon/watch/loop_table.h"

#include <map>
#include <memory>
#include <string>

#include "gmock/gmock.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);
absl::Time After(double seconds) { return kStart + absl::Seconds(seconds); }

std::map<std::string, absl::Duration> StoppedAt(const LoopTable& table,
                                                absl::Time now) {
  std::map<std::string, absl::Duration> stopped;
  table.ForEachStopped(now, [&](const LoopName& name, absl::Duration silence) {
    stopped[LoopText(name)] = silence;
  });
  return stopped;
}

TEST(LoopTableTest, OneThatDoesNotAnswerHasStopped) {
  const auto table = std::make_shared<LoopTable>();
  const WatchedLoop mover = table->Add({"mover", 4711});
  const WatchedLoop log = table->Add({"log"});
  mover.heartbeat().Ask(After(0));
  log.heartbeat().Ask(After(0));
  log.heartbeat().Beat();
  EXPECT_THAT(StoppedAt(*table, After(1.2)), IsEmpty());
  EXPECT_THAT(StoppedAt(*table, After(2)),
              ElementsAre(Pair("mover of process 4711", absl::Seconds(2))));
  mover.heartbeat().Beat();
  EXPECT_THAT(StoppedAt(*table, After(100)), IsEmpty());
}

// A thread that hung in the kernel, and goes on after its runtime has gone.
TEST(LoopTableTest, WhoIsLeftBehindAnswersForNoOther) {
  const auto table = std::make_shared<LoopTable>();
  WatchedLoop first = table->Add({"files", 1, 0});
  const std::shared_ptr<Heartbeat> left_behind = first.shared_heartbeat();
  first = WatchedLoop();
  const WatchedLoop second = table->Add({"files", 2, 0});
  second.heartbeat().Ask(After(0));
  left_behind->Beat();
  EXPECT_THAT(StoppedAt(*table, After(2)),
              ElementsAre(Pair("files 0 of process 2", absl::Seconds(2))));
}

// Each of which has one place, however many there were.
TEST(LoopTableTest, AHeartbeatIsUsedAgainOnceNobodyHasIt) {
  const auto table = std::make_shared<LoopTable>();
  WatchedLoop loop = table->Add({"files", 1, 0});
  Heartbeat* const first = &loop.heartbeat();
  std::shared_ptr<Heartbeat> left_behind = loop.shared_heartbeat();
  loop = WatchedLoop();
  EXPECT_EQ(table->size(), 0);
  left_behind.reset();
  loop = table->Add({"files", 2, 0});
  EXPECT_EQ(&loop.heartbeat(), first);
  EXPECT_EQ(table->size(), 1);
}

// A thread of several is that session's which it works for.
TEST(LoopTableTest, WhomAThreadServesIsSaid) {
  const auto table = std::make_shared<LoopTable>();
  const int64_t session = table->NewSession();
  const WatchedLoop pool = table->Add({.kind = "checksums", .number = 0});
  const auto served = [&] {
    int64_t found = -1;
    table->ForEach(kStart, [&](const LoopName& name, absl::Duration) {
      found = name.session;
    });
    return found;
  };
  EXPECT_EQ(served(), 0);
  pool.heartbeat().SetServed(session);
  EXPECT_EQ(served(), session);
  pool.heartbeat().SetServed(0);
  EXPECT_EQ(served(), 0);
}

}  // namespace
}  // namespace terrace
