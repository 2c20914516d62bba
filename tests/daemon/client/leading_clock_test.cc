// Threads of a process that wait for a daemon, which the test plays: one of
// them hears for all, and whatever ends a wait ends it.
#include "daemon/client/leading_clock.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/wire/ring/ring_file.h"
#include "gtest/gtest.h"
#include "runtime/messages/queue_port.h"

namespace terrace {
namespace {

constexpr ClientId kOurClient = 3;

PacketSocket SocketOf(int fd) {
  return *PacketSocket::Of(OwnDescriptor::Of(fd), "a connection");
}

class NoPins final : public PinOwner {
 public:
  void EndPin(uint64_t /*token*/, PinEnd /*end*/) override {}
};

class LeadingClockTest : public testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> fds = {};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds.data()), 0);
    const Rings rings = file_.rings();
    ours_.emplace(SocketOf(fds[0]), std::nullopt, rings.requests, rings.news);
    daemons_.emplace(SocketOf(fds[1]), std::nullopt, rings.news,
                     rings.requests);
    reader_.Begin(*ours_);
  }
  void TearDown() override {
    reader_.End(absl::CancelledError("the test ends"));
  }

  static absl::Time In(absl::Duration time) {
    return SystemClock().Now() + time;
  }
  void Note(const Question& question) {
    dues_->Note(UnregisterRequest{question.id(), TensorId{1}}, clock_.Now());
  }
  void Answer(const Question& question) { Answer(question.id().number); }
  void Answer(uint64_t number) {
    JobNews news;
    news.entries.push_back(AnswerNews{number, absl::OkStatus()});
    EXPECT_TRUE(daemons_->Send({.body = std::move(news)}).ok());
  }
  // As the relay's thread: whether it was rung for within that time.
  bool HearAsRelay(absl::Duration time) {
    if (reader_.RestForNews()) {
      pollfd wait = {ours_->descriptor(), POLLIN, 0};
      const int ms = static_cast<int>(absl::ToInt64Milliseconds(time));
      if (poll(&wait, 1, ms) == 0) return false;
      EXPECT_TRUE(ours_->HearBells().ok());
    }
    EXPECT_TRUE(reader_.Hear().ok());
    return true;
  }
  // Until a thread sleeps at the ring.
  void AwaitSleep() {
    while (file_.rings().news.words->thread != kSleeps) {
      std::this_thread::yield();
    }
  }

  const RingFile file_ = *RingFile::Make();
  std::optional<MessageChannel> ours_;
  std::optional<MessageChannel> daemons_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>([] {});
  const std::shared_ptr<Dues> dues_ = std::make_shared<Dues>();
  Port port_{kOurClient, std::make_shared<NoPins>()};
  NewsReader reader_{{.port = &port_,
                      .inbox = inbox_,
                      .dues = dues_,
                      .relay = std::make_shared<WakeEvent>(*WakeEvent::Make()),
                      .memory_bytes = 4096,
                      .patience = absl::Minutes(1)}};
  LeadingClock clock_{reader_, *file_.rings().news.words};
};

TEST_F(LeadingClockTest, WhoWaitsHearsItsAnswerAndNobodyElseIsRung) {
  EXPECT_TRUE(reader_.RestForNews());  // the relay rests
  for (int i = 0; i < 1000; ++i) {
    Question question(port_);
    Note(question);
    std::thread daemon([&] {
      AwaitSleep();
      Answer(question);
    });
    EXPECT_TRUE(question.AwaitStatus(clock_).ok());
    daemon.join();
  }
  pollfd wait = {ours_->descriptor(), POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 0), 0);
}

// An answer that comes while who waits for it is about to sleep.
TEST_F(LeadingClockTest, NoAnswerIsSleptThrough) {
  constexpr int kAnswers = 100'000;
  std::atomic<uint64_t> asked = 0;
  std::thread daemon([&] {
    for (int i = 0; i < kAnswers; ++i) {
      uint64_t number = 0;
      while ((number = asked.exchange(0)) == 0) std::this_thread::yield();
      Answer(number);
    }
  });
  for (int i = 0; i < kAnswers; ++i) {
    Question question(port_);
    Note(question);
    asked = question.id().number;
    const auto told = question.AwaitStatus(clock_, In(absl::Seconds(20)));
    ASSERT_TRUE(told.has_value()) << "after " << i << " answers";
  }
  daemon.join();
}

TEST_F(LeadingClockTest, WhoLeadsHearsForTheOthers) {
  constexpr int kThreads = 4;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::unique_ptr<Question>> questions;
    for (int i = 0; i < kThreads; ++i) {
      questions.push_back(std::make_unique<Question>(port_));
      Note(*questions.back());
    }
    std::atomic<int> answered = 0;
    std::vector<std::thread> threads;
    for (auto& each : questions) {
      threads.emplace_back([&] {
        EXPECT_TRUE(each->AwaitStatus(clock_).ok());
        ++answered;
      });
    }
    AwaitSleep();
    for (int i = 0; i < kThreads; ++i) Answer(*questions[(i + round) % 4]);
    // Those that the leader did not stay for are the relay's to tell.
    while (answered < kThreads) HearAsRelay(absl::Milliseconds(5));
    for (std::thread& each : threads) each.join();
  }
}

TEST_F(LeadingClockTest, WhatComesWhereNobodyWaitsIsTheRelays) {
  Question question(port_);
  Note(question);
  EXPECT_TRUE(reader_.RestForNews());
  Answer(question);
  EXPECT_TRUE(HearAsRelay(absl::Seconds(20)));
  EXPECT_TRUE(question.AwaitStatus(clock_, absl::InfinitePast())->ok());
}

TEST_F(LeadingClockTest, ADeadlineEndsIt) {
  Question question(port_);
  Note(question);
  EXPECT_FALSE(
      question.AwaitStatus(clock_, In(absl::Milliseconds(20))).has_value());
}

// What another thread of the process says ends the wait of the one that leads.
TEST_F(LeadingClockTest, AnySignalEndsIt) {
  for (int round = 0; round < 1000; ++round) {
    QueuePort queue(std::make_shared<NoPins>());
    std::thread other([&] {
      if (round % 2 == 0) AwaitSleep();
      queue.Wake();
    });
    const auto taken = queue.Take(clock_, 0, In(absl::Seconds(20)));
    EXPECT_TRUE(absl::IsAborted(taken.status())) << taken.status();
    other.join();
  }
}

// Nobody waits for a daemon that has said what none says.
TEST_F(LeadingClockTest, AnErrorLeavesTheRestToTheRelay) {
  Question question(port_);
  Note(question);
  std::thread daemon([&] {
    AwaitSleep();
    EXPECT_TRUE(daemons_->Send({.body = StatusRequest()}).ok());
    while (reader_.hears()) std::this_thread::yield();
    reader_.End(reader_.Hear());
  });
  const absl::Status told = question.AwaitStatus(clock_);
  EXPECT_TRUE(absl::IsInternal(told)) << told;
  daemon.join();
}

}  // namespace
}  // namespace terrace
