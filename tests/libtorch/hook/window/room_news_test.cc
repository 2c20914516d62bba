// A thread that listens misses nothing, and waits for nothing else.
#include "libtorch/hook/window/room_news.h"

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

TEST(RoomNews, AWaitEndsWithWhatWasToldSinceTheListenerListens) {
  RoomNews::Tell();  // nobody listens
  RoomNews::Listener news;
  RoomNews::Tell();
  RoomNews::Tell();
  news.Wait(absl::InfiniteFuture());
  const absl::Time begun = absl::Now();
  news.Wait(begun + absl::Milliseconds(5));  // both were news once
  EXPECT_GE(absl::Now() - begun, absl::Milliseconds(5));
}

TEST(RoomNews, AWaitEndsAtItsDeadline) {
  RoomNews::Listener news;
  news.Wait(absl::InfinitePast());
  news.Wait(absl::Now() + absl::Milliseconds(1));
}

// Each waits for the other: a wake-up that is lost hangs the test.
TEST(RoomNews, NoNewsIsLost) {
  constexpr int kRounds = 20'000;
  std::atomic<int> turn = 0;
  const auto play = [&turn](int mine) {
    RoomNews::Listener news;
    for (int round = mine; round < kRounds; round += 2) {
      while (turn.load() != round) news.Wait(absl::InfiniteFuture());
      turn.store(round + 1);
      RoomNews::Tell();
    }
  };
  std::thread other([&play] { play(1); });
  play(0);
  other.join();
  EXPECT_EQ(turn.load(), kRounds);
}

// As the first, but the other thread does not know whether anyone listens.
TEST(RoomNews, AListenerThatComesMeanwhileHearsOfTheRest) {
  for (int round = 0; round < 2'000; ++round) {
    std::atomic<bool> is_changed = false;
    std::thread changes([&is_changed] {
      is_changed.store(true);
      RoomNews::Tell();
    });
    RoomNews::Listener news;
    while (!is_changed.load()) news.Wait(absl::InfiniteFuture());
    changes.join();
  }
}

}  // namespace
}  // namespace terrace
