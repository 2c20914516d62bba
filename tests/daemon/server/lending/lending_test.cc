// Jobs that together ask for more memory than the host's daemon has: what they
// have at each time, and that each finds the bytes that it wrote, by plain
// patterns.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "terrace/byte_queue.h"
#include "tests/daemon/server/connected_job.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kMib = 1 << 20;
constexpr int64_t kTensor = 100 << 10;
class LendingTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(daemon_.Serves()); }

  std::unique_ptr<Runtime> Connected(int64_t bytes, const std::string& job) {
    auto connected = ConnectAs(daemon_, bytes, job, 0);
    EXPECT_TRUE(connected.ok()) << connected.status();
    return *std::move(connected);
  }
  static std::vector<TensorId> Filled(Runtime& job, int count) {
    std::vector<TensorId> tensors;
    for (int i = 0; i < count; ++i) {
      tensors.push_back(*RegisterOf(job, absl::StrCat("t", i), kTensor));
      EXPECT_TRUE(FillOf(job, tensors.back(), static_cast<uint8_t>(i)));
    }
    return tensors;
  }
  static void ExpectFilled(Runtime& job, const std::vector<TensorId>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(Holds(job, tensors[i], static_cast<uint8_t>(i))) << i;
    }
  }
  static std::vector<Pin> Pinned(Runtime& job,
                                 const std::vector<TensorId>& tensors) {
    std::vector<Pin> pins;
    for (const TensorId each : tensors) {
      auto pin = job.Acquire(each, Access::kRead, Later());
      EXPECT_TRUE(pin.ok()) << pin.status();
      if (pin.ok()) pins.push_back(*std::move(pin));
    }
    return pins;
  }
  // That it has of the machine.
  static int64_t BytesOf(Runtime& job) {
    return job.GetStats().host.reserved_bytes;
  }

  const TemporaryDirectory path_;
  RunningDaemon daemon_{
      "",
      {.tiers = absl::StrCat("'dram=8MiB', 'nvme:", path_.path(), "=64MiB'")}};
};

TEST_F(LendingTest, WhoHasMoreThanItsShareLendsAndHasItBack) {
  auto one = Connected(7 * kMib, "one");
  const std::vector<TensorId> tensors = Filled(*one, 60);  // some 6 MiB, dirty
  EXPECT_EQ(BytesOf(*one), 7 * kMib);
  auto two = Connected(3 * kMib, "two");
  EXPECT_EQ(UsedMemory(daemon_), 8 * kMib);
  EXPECT_EQ(BytesOf(*one), 5 * kMib);
  EXPECT_EQ(one->GetStats().host.budget_bytes, 7 * kMib);
  EXPECT_EQ(BytesOf(*two), 3 * kMib);
  const std::vector<TensorId> others = Filled(*two, 20);
  ExpectFilled(*one, tensors);
  ExpectFilled(*two, others);
  EXPECT_EQ(BytesOf(*one), 5 * kMib);
  two.reset();
  EXPECT_TRUE(daemon_.WaitUntil([&] { return BytesOf(*one) == 7 * kMib; }));
  EXPECT_EQ(UsedMemory(daemon_), 7 * kMib);
  ExpectFilled(*one, tensors);
  one.reset();
  EXPECT_TRUE(daemon_.WaitUntil([&] { return UsedMemory(daemon_) == 0; }));
  EXPECT_EQ(daemon_.End().exit_code, 0);
}

TEST_F(LendingTest, WhatIsMoreThanAShareIsRefusedAtOnce) {
  auto one = Connected(7 * kMib, "one");
  const absl::Time before = absl::Now();
  const absl::Status two = ConnectAs(daemon_, 5 * kMib, "two").status();
  EXPECT_LT(absl::Now() - before, absl::Seconds(5));
  EXPECT_TRUE(absl::IsResourceExhausted(two)) << two;
  const std::string uid = absl::StrCat(getuid());
  EXPECT_EQ(two.message(),
            absl::StrCat("dram: 5242880 bytes are too many: all of this host's "
                         "jobs together has 7340032, and the limit is 8388608; "
                         "with what others would lend it may have 4194304; "
                         "held by the job 'one' of uid ",
                         uid, ", 7340032"));
  EXPECT_EQ(BytesOf(*one), 7 * kMib);
  EXPECT_EQ(UsedMemory(daemon_), 7 * kMib);
}

// No quota is met by what others lend.
TEST(LendingQuotasTest, AQuotaIsRefusedAtOnce) {
  RunningDaemon daemon("[quota.job]\ntiers = ['dram=3MiB']\n");
  ASSERT_TRUE(daemon.Serves());
  auto one = ConnectAs(daemon, 3 * kMib, "one");
  auto two = ConnectAs(daemon, 3 * kMib, "two");
  ASSERT_TRUE(one.ok() && two.ok());
  const absl::Status again = ConnectAs(daemon, kMib, "one").status();
  EXPECT_TRUE(absl::IsResourceExhausted(again)) << again;
  EXPECT_THAT(std::string(again.message()), HasSubstr("the limit is 3145728"));
  EXPECT_EQ((*one)->GetStats().host.reserved_bytes, 3 * kMib);
}

TEST_F(LendingTest, PinsStayAndAreNamed) {
  auto one = Connected(7 * kMib, "one");
  const std::vector<TensorId> tensors = Filled(*one, 50);
  std::vector<Pin> pins = Pinned(*one, tensors);
  auto waits = std::async(std::launch::async, [this] {
    return ConnectAs(daemon_, 4 * kMib, "two");
  });
  // Its pins end while it waits.
  EXPECT_EQ(waits.wait_for(std::chrono::seconds(1)),
            std::future_status::timeout);
  for (size_t i = 0; i < pins.size(); ++i) {
    EXPECT_TRUE(HasPattern(pins[i].data(), static_cast<uint8_t>(i)));
  }
  pins.clear();
  auto two = waits.get();
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(BytesOf(*one), 4 * kMib);
  ExpectFilled(*one, tensors);
}

TEST_F(LendingTest, WhatQueuesWerePromisedIsNotLent) {
  auto one = Connected(7 * kMib, "one");
  auto queue = one->OpenQueue(kTensor, 60, Later());  // 6 MiB and more
  ASSERT_TRUE(queue.ok()) << queue.status();
  const absl::Status two = ConnectAs(daemon_, 4 * kMib, "two").status();
  EXPECT_TRUE(absl::IsResourceExhausted(two)) << two;
  EXPECT_THAT(std::string(two.message()),
              HasSubstr("others could not lend it in time: the job 'one' of "));
  EXPECT_THAT(std::string(two.message()), HasSubstr(" bytes for its queues"));
  // What was lent meanwhile comes back.
  EXPECT_TRUE(daemon_.WaitUntil([&] { return BytesOf(*one) == 7 * kMib; }));
  EXPECT_EQ(UsedMemory(daemon_), 7 * kMib);
}

TEST_F(LendingTest, AWindowWaitsForWhatIsLent) {
  auto one = Connected(7 * kMib, "one");
  auto two = Connected(4 * kMib, "two");
  EXPECT_EQ(BytesOf(*one), 4 * kMib);
  const auto refused =
      one->OpenQueue(kTensor, 60, absl::Now() + absl::Milliseconds(300));
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("other jobs, 3145728 bytes"));
  auto waits = std::async(std::launch::async,
                          [&] { return one->OpenQueue(kTensor, 60, Later()); });
  EXPECT_EQ(waits.wait_for(std::chrono::milliseconds(200)),
            std::future_status::timeout);
  two.reset();
  const auto opened = waits.get();
  EXPECT_TRUE(opened.ok()) << opened.status();
}

TEST_F(LendingTest, GrowthWaitsForWhatOthersLend) {
  auto one = Connected(6 * kMib, "one");
  const std::vector<TensorId> tensors = Filled(*one, 50);
  auto two = ConnectAs(daemon_, 2 * kMib, "two", 4 * kMib);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ((*two)->GrowMemory(2 * kMib), absl::OkStatus());
  EXPECT_EQ((*two)->GetStats().host.budget_bytes, 4 * kMib);
  EXPECT_EQ(BytesOf(*one), 4 * kMib);
  const absl::Status more = (*two)->GrowMemory(2 * kMib);
  EXPECT_TRUE(absl::IsResourceExhausted(more)) << more;
  ExpectFilled(*one, tensors);
}

// What it has is all that is given back: what it lent is another's.
TEST_F(LendingTest, WhoLendsMayEndOrBeKilled) {
  auto one = Connected(7 * kMib, "one");
  auto two = Connected(4 * kMib, "two");
  EXPECT_EQ(one->Close(Later()), absl::OkStatus());
  one.reset();
  EXPECT_TRUE(
      daemon_.WaitUntil([&] { return UsedMemory(daemon_) == 4 * kMib; }));
  two.reset();
  EXPECT_TRUE(daemon_.WaitUntil([&] { return UsedMemory(daemon_) == 0; }));
  if (!kChildrenHaveThreads) return;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto lends = ConnectAs(daemon_, 7 * kMib, "one");
    if (!lends.ok() || write(ready[1], "r", 1) != 1) _exit(1);
    Filled(**lends, 40);
    while (true) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  auto three = Connected(4 * kMib, "three");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(
      daemon_.WaitUntil([&] { return UsedMemory(daemon_) == 4 * kMib; }));
}

// One of two that wait is served by what has come, though the other's is still
// to come.
TEST_F(LendingTest, WhoWaitsForLittleHasItFirst) {
  auto one = Connected(7 * kMib, "one");
  const std::vector<TensorId> tensors = Filled(*one, 60);
  std::vector<Pin> pins = Pinned(*one, tensors);
  pins.erase(pins.begin(), pins.begin() + 5);  // the last ones stay pinned
  auto large = std::async(std::launch::async, [this] {
    return ConnectAs(daemon_, 2500 << 10, "l");
  });
  absl::SleepFor(absl::Milliseconds(200));
  auto small = ConnectAs(daemon_, 2 * kMib, "s");
  EXPECT_TRUE(small.ok()) << small.status();
  for (size_t i = 0; i < pins.size(); ++i) {
    EXPECT_TRUE(HasPattern(pins[i].data(), static_cast<uint8_t>(i + 5)));
  }
  pins.clear();
  const auto had = large.get();
  EXPECT_TRUE(had.ok()) << had.status();
  ExpectFilled(*one, tensors);
}

// Its own memory it does not lend itself, nor do two that grow wait for each
// other.
TEST_F(LendingTest, GrowthBeyondAShareIsRefusedAtOnce) {
  auto one = ConnectAs(daemon_, 8 * kMib, "one", 8 * kMib);
  ASSERT_TRUE(one.ok()) << one.status();
  const absl::Time before = absl::Now();
  EXPECT_TRUE(absl::IsResourceExhausted((*one)->GrowMemory(2 * kMib)));
  EXPECT_LT(absl::Now() - before, absl::Seconds(5));
  one->reset();
  EXPECT_TRUE(daemon_.WaitUntil([&] { return UsedMemory(daemon_) == 0; }));
  auto a = ConnectAs(daemon_, 4 * kMib, "a", 4 * kMib);
  auto b = ConnectAs(daemon_, 4 * kMib, "b", 4 * kMib);
  ASSERT_TRUE(a.ok() && b.ok());
  auto other =
      std::async(std::launch::async, [&] { return (*b)->GrowMemory(kMib); });
  EXPECT_TRUE(absl::IsResourceExhausted((*a)->GrowMemory(kMib)));
  EXPECT_TRUE(absl::IsResourceExhausted(other.get()));
  EXPECT_LT(absl::Now() - before, absl::Seconds(20));
}

TEST_F(LendingTest, SeveralShareAndWaitInTurn) {
  std::vector<std::unique_ptr<Runtime>> jobs;
  std::vector<std::vector<TensorId>> tensors;
  for (int i = 0; i < 4; ++i) {
    jobs.push_back(Connected(2 * kMib * (i == 0 ? 4 : 1), absl::StrCat(i)));
    tensors.push_back(Filled(*jobs.back(), 15));
    EXPECT_EQ(UsedMemory(daemon_), 8 * kMib);
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(BytesOf(*jobs[i]), 2 * kMib) << i;
    ExpectFilled(*jobs[i], tensors[i]);
  }
  jobs[1].reset();
  EXPECT_TRUE(daemon_.WaitUntil([&] { return BytesOf(*jobs[0]) == 4 * kMib; }));
  jobs[3].reset();
  EXPECT_TRUE(daemon_.WaitUntil([&] { return BytesOf(*jobs[0]) == 6 * kMib; }));
  ExpectFilled(*jobs[0], tensors[0]);
  ExpectFilled(*jobs[2], tensors[2]);
}

// Nobody has what was lent to one that was killed.
TEST_F(LendingTest, WhatWasLentToOneThatIsKilledComesBack) {
  if (!kChildrenHaveThreads) GTEST_SKIP() << "a child needs threads";
  auto one = Connected(7 * kMib, "one");
  const std::vector<TensorId> tensors = Filled(*one, 60);
  const pid_t child = fork();
  if (child == 0) {
    auto two = ConnectAs(daemon_, 4 * kMib, "two");
    if (!two.ok()) _exit(1);
    Filled(**two, 30);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(daemon_.WaitUntil([&] { return BytesOf(*one) == 7 * kMib; }));
  ExpectFilled(*one, tensors);
}

// One writes and reads all the time, of more than its memory; others come and
// go, some of them before they have any.
TEST_F(LendingTest, OneGoesOnWhileOthersComeAndGo) {
  auto one = Connected(7 * kMib, "one");
  std::atomic<bool> ends = false;
  std::thread works([&] {
    std::mt19937 random(5);
    std::vector<int> seeds(80, -1);  // what each was written with
    std::vector<TensorId> tensors;
    for (size_t i = 0; i < seeds.size(); ++i) {
      tensors.push_back(*RegisterOf(*one, absl::StrCat("w", i), kTensor));
    }
    while (!ends) {
      const size_t i = random() % seeds.size();
      if (seeds[i] < 0 || random() % 2 == 0) {
        const auto seed = static_cast<uint8_t>(random() % 200);
        if (FillOf(*one, tensors[i], seed)) seeds[i] = seed;
      } else {
        EXPECT_TRUE(Holds(*one, tensors[i], static_cast<uint8_t>(seeds[i])));
      }
    }
  });
  std::mt19937 random(9);
  for (int round = 0; round < 30; ++round) {
    const auto bytes = static_cast<int64_t>(1 + random() % 4) * kMib;
    auto two = ConnectAs(daemon_, bytes, absl::StrCat("two", round));
    EXPECT_TRUE(two.ok()) << two.status();
    if (!two.ok()) continue;
    ExpectFilled(**two, Filled(**two, 5));
    EXPECT_LE(UsedMemory(daemon_), 8 * kMib);
  }
  ends = true;
  works.join();
  EXPECT_TRUE(daemon_.WaitUntil([&] { return BytesOf(*one) == 7 * kMib; }));
}

// A process that waits for its memory is killed: others go on.
TEST_F(LendingTest, WhoWaitsAndIsKilledIsForgotten) {
  if (!kChildrenHaveThreads) GTEST_SKIP() << "a child needs threads";
  auto one = Connected(7 * kMib, "one");
  const std::vector<TensorId> tensors = Filled(*one, 60);
  std::vector<Pin> pins = Pinned(*one, tensors);
  {
    const pid_t waits = fork();
    if (waits == 0) {
      ConnectAs(daemon_, 4 * kMib, "two").status().IgnoreError();
      _exit(1);
    }
    absl::SleepFor(absl::Milliseconds(300));
    kill(waits, SIGKILL);
    waitpid(waits, nullptr, 0);
  }
  pins.clear();
  EXPECT_TRUE(daemon_.WaitUntil([&] { return BytesOf(*one) == 7 * kMib; }));
  EXPECT_EQ(UsedMemory(daemon_), 7 * kMib);
  ExpectFilled(*one, tensors);
}

// SIGTERM ends one that waits, too.
TEST_F(LendingTest, TheDaemonsEndEndsAWait) {
  auto one = Connected(7 * kMib, "one");
  const std::vector<TensorId> tensors = Filled(*one, 60);
  const std::vector<Pin> pins = Pinned(*one, tensors);
  auto waits = std::async(std::launch::async, [this] {
    return ConnectAs(daemon_, 4 * kMib, "two").status();
  });
  absl::SleepFor(absl::Milliseconds(300));
  const absl::Time before = absl::Now();
  daemon_.End();
  const absl::Status ended = waits.get();
  EXPECT_LT(absl::Now() - before, absl::Seconds(10));
  EXPECT_FALSE(ended.ok());
}

}  // namespace
}  // namespace terrace
