// What a process may do to the rings that it has with the daemon.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "daemon/wire/ring/futex.h"
#include "tests/daemon/server/hostile/hostile_job.h"

namespace terrace {
namespace {

class HostileRingTest : public HostileJobTest {
 protected:
  static constexpr auto kWrong = absl::StatusCode::kInvalidArgument;
};

TEST_F(HostileRingTest, APlaceThatIsNoneEndsIt) {
  for (const uint32_t beyond :
       {1u, 3u, kRingBytes + 1, uint32_t{1} << 31, ~0u, ~0u - 3}) {
    RawJob job(daemon_);
    job.Register(1, "a");
    job.rings().requests.words->written += beyond;
    job.Ring();
    ExpectEnd(job, kWrong, "a ring");
  }
}

// Its reader's place, which the daemon needs to know what room there is.
TEST_F(HostileRingTest, APlaceOfTheReaderThatIsNoneEndsIt) {
  for (const uint32_t beyond : {1u << 20, uint32_t{1} << 31}) {
    RawJob job(daemon_);
    job.Register(1, "a");
    job.rings().news.words->read += beyond;
    job.Ask(StatsRequest{{.number = 2}});
    absl::Status how;
    do {
      how = job.Hear().status();
    } while (how.ok());
    // The reason has no place in such a ring.
    EXPECT_TRUE(absl::IsUnavailable(how)) << how;
  }
}

TEST_F(HostileRingTest, ALengthThatIsNoneEndsIt) {
  for (const uint32_t length : {0u, 64u, 65'537u, 1u << 30, ~0u, ~0u - 3}) {
    RawJob job(daemon_);
    const RingView ring = job.rings().requests;
    const uint32_t place = ring.words->written;
    std::memcpy(ring.bytes + place % kRingBytes, &length, sizeof(length));
    ring.words->written += 64;
    job.Ring();
    ExpectEnd(job, kWrong, "a packet of");
  }
}

// Whatever the words are, and however often they change, the daemon copies what
// it looks at, and ends the connection at most.
TEST_F(HostileRingTest, WordsThatChangeAllTheWhileAreItsOwnLoss) {
  std::mt19937 draw(7);
  for (int round = 0; round < 30; ++round) {
    RawJob job(daemon_);
    auto* const begin =
        reinterpret_cast<std::byte*>(job.rings().requests.words);
    for (int i = 0; i < 300; ++i) {
      const auto value = static_cast<uint32_t>(draw());
      const size_t place = draw() % 2 == 0
                               ? draw() % (64 * 4)
                               : draw() % static_cast<size_t>(kRingFileBytes);
      std::memcpy(begin + place / 4 * 4, &value, sizeof(value));
      if (!job.Ring()) break;  // it has ended
    }
  }
}

TEST_F(HostileRingTest, ABellThatIsNoneEndsIt) {
  RawJob job(daemon_);
  const std::vector<std::byte> bytes = *Encode({.body = JobRequests()});
  EXPECT_TRUE(*job.socket().Send(bytes));
  ExpectEnd(job, kWrong, "more than 1 bytes");
}

// They wake the daemon, and are nothing else.
TEST_F(HostileRingTest, BellsWithoutEndHoldUpNobody) {
  RawJob job(daemon_);
  for (int i = 0; i < 100'000; ++i) job.Ring();
  EXPECT_TRUE(Holds(*other_, kept_, 7));
  job.Register(1, "a");
}

// A wake-up at a word whose page is gone is none, and no wait either.
TEST_F(HostileRingTest, PagesThatAreTakenOutAreItsOwnLoss) {
  for (int round = 0; round < 10; ++round) {
    RawJob job(daemon_);
    job.rings().news.words->thread = kSleeps;
    job.Ask(StatsRequest{{.number = 1}});
    EXPECT_EQ(fallocate(job.ring_file().get(),
                        FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        kRingFileBytes),
              0);
    for (int i = 0; i < 100 && job.Ring(); ++i) {
      job.rings().requests.words->written += 8;
    }
  }
}

// What it had written by then is heard, and no more.
TEST_F(HostileRingTest, WhoHasGoneAndWritesOnIsHeardNoMore) {
  RawJob job(daemon_);
  std::atomic<bool> ends = false;
  std::thread writes([&] {
    JobRequests requests;
    requests.requests.resize(1);
    for (uint64_t number = 1; !ends; ++number) {
      requests.requests[0] = StatsRequest{{.number = number}};
      job.Write(*Encode({.body = requests}));
    }
  });
  EXPECT_EQ(shutdown(job.socket().descriptor(), SHUT_WR), 0);
  EXPECT_TRUE(
      daemon_.WaitUntil([&] { return UsedMemory(daemon_) == kHostileMemory; }));
  ends = true;
  writes.join();
}

TEST_F(HostileRingTest, TheRingsKeepTheirSize) {
  RawJob job(daemon_);
  ExpectFixedSize(job.ring_file());
  job.Register(1, "a");
}

// A reader that says it sleeps, and never does, is woken by calls that take no
// time: it is as if nobody waited.
TEST_F(HostileRingTest, AReaderThatNeverSleepsIsServed) {
  RawJob job(daemon_);
  job.rings().news.words->thread = kSleeps;
  for (uint64_t i = 1; i < 100; ++i) {
    job.Ask(StatsRequest{{.number = i}});
    const uint32_t seen = job.rings().news.words->wakes;
    if (job.rings().news.words->written == job.rings().news.words->read) {
      FutexWait(job.rings().news.words->wakes, seen, absl::Seconds(5));
    }
    EXPECT_TRUE(job.Outcome().ok());
  }
}

}  // namespace
}  // namespace terrace
