// A daemon that is killed, and one that goes on with what it had: the process
// notices no more than a wait. What it has is compared with what it wrote.
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "terrace/byte_queue.h"
#include "tests/daemon/server/hostile/played_process.h"
#include "tests/daemon/server/kept/revived_daemon.h"

namespace terrace {
namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMemory = 512 * kKiB;
constexpr int64_t kTensor = 100 * kKiB;

std::vector<TensorId> Filled(Runtime& job, int count) {
  std::vector<TensorId> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back(*RegisterOf(job, absl::StrCat("t", i), kTensor));
    EXPECT_TRUE(FillOf(job, tensors.back(), static_cast<uint8_t>(i)));
  }
  return tensors;
}

TEST_F(RevivedDaemonTest, TensorsHaveWhatTheyHad) {
  auto job = *ConnectAs(daemon_, kMemory);
  // Some rest on the disk, some are in memory alone.
  const std::vector<TensorId> tensors = Filled(*job, 8);
  const int64_t on_path = UsedPath(daemon_);
  for (int life = 0; life < 3; ++life) {
    Revive();
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(Holds(*job, tensors[i], static_cast<uint8_t>(i)))
          << "tensor " << i << ", life " << life;
    }
  }
  EXPECT_EQ(UsedPath(daemon_), on_path);
  EXPECT_EQ(UsedMemory(daemon_), kMemory);
  // Its names and numbers are known there.
  EXPECT_TRUE(absl::IsAlreadyExists(RegisterOf(*job, "t3", kTensor).status()));
  EXPECT_EQ(RegisterOf(*job, "more", kTensor)->value, 8);
  EXPECT_EQ(job->Unregister(tensors[3]), absl::OkStatus());
  EXPECT_EQ(job->Close(Later()), absl::OkStatus());
  job.reset();
  EXPECT_EQ(UsedMemory(daemon_), 0);
  EXPECT_EQ(UsedPath(daemon_), 0);
  EXPECT_THAT(daemon_.Kept(), testing::IsEmpty());
}

// What one has lent stays lent, and comes back later.
TEST_F(RevivedDaemonTest, WhatIsLentStaysLent) {
  constexpr int64_t kMiB = 1024 * kKiB;
  auto one = *ConnectAs(daemon_, 7 * kMiB, "one");
  const std::vector<TensorId> tensors = Filled(*one, 45);
  auto two = *ConnectAs(daemon_, 4 * kMiB, "two");
  const auto bytes_of = [](Runtime& job) {
    return job.GetStats().host.reserved_bytes;
  };
  EXPECT_EQ(bytes_of(*one), 4 * kMiB);
  for (int life = 0; life < 2; ++life) {
    Revive();
    EXPECT_EQ(bytes_of(*one), 4 * kMiB) << life;
    EXPECT_EQ(bytes_of(*two), 4 * kMiB) << life;
    EXPECT_EQ(UsedMemory(daemon_), 8 * kMiB) << life;
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(Holds(*one, tensors[i], static_cast<uint8_t>(i))) << i;
    }
  }
  two.reset();
  EXPECT_TRUE(daemon_.WaitUntil([&] { return bytes_of(*one) == 7 * kMiB; }));
  Revive();
  EXPECT_EQ(bytes_of(*one), 7 * kMiB);
  EXPECT_EQ(UsedMemory(daemon_), 7 * kMiB);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(Holds(*one, tensors[i], static_cast<uint8_t>(i))) << i;
  }
}

// Who comes before the others have gone on waits for what they lend.
TEST_F(RevivedDaemonTest, WhoComesFirstWaitsForThoseThatLend) {
  constexpr int64_t kMiB = 1024 * kKiB;
  auto one = *ConnectAs(daemon_, 7 * kMiB, "one");
  const std::vector<TensorId> tensors = Filled(*one, 45);
  for (int life = 0; life < 5; ++life) {
    Revive();
    ASSERT_TRUE(daemon_.Serves());
    auto two = ConnectAs(daemon_, 4 * kMiB, "two");
    ASSERT_TRUE(two.ok()) << two.status();
    EXPECT_EQ(one->GetStats().host.reserved_bytes, 4 * kMiB);
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(Holds(*one, tensors[i], static_cast<uint8_t>(i))) << i;
    }
  }
}

TEST_F(RevivedDaemonTest, PinsStayWhereTheyAre) {
  auto job = *ConnectAs(daemon_, kMemory);
  const std::vector<TensorId> tensors = Filled(*job, 3);
  auto read = job->Acquire(tensors[0], Access::kRead, Later());
  auto update = job->Acquire(tensors[1], Access::kUpdate, Later());
  auto write = job->Acquire(tensors[2], Access::kOverwrite, Later());
  ASSERT_TRUE(read.ok() && update.ok() && write.ok());
  const size_t half = write->data().size() / 2;
  std::memset(write->data().data(), 1, half);
  Revive();
  EXPECT_TRUE(HasPattern(read->data(), 0));
  EXPECT_TRUE(HasPattern(update->data(), 1));
  std::memset(write->data().data() + half, 2, write->data().size() - half);
  std::memset(update->data().data(), 3, update->data().size());
  // They exclude what they excluded.
  const auto also = job->Acquire(tensors[1], Access::kRead,
                                 absl::Now() + absl::Milliseconds(200));
  EXPECT_FALSE(also.ok());
  read->Release();
  update->Release();
  write->Release();
  const auto again = job->Acquire(tensors[2], Access::kRead, Later());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->data().front(), std::byte{1});
  EXPECT_EQ(again->data().back(), std::byte{2});
  const auto updated = job->Acquire(tensors[1], Access::kRead, Later());
  ASSERT_TRUE(updated.ok()) << updated.status();
  EXPECT_EQ(updated->data().back(), std::byte{3});
}

TEST_F(RevivedDaemonTest, GroupsThatWaitAreHad) {
  auto job = *ConnectAs(daemon_, kMemory);
  const std::vector<TensorId> tensors = Filled(*job, 6);
  // Nothing has room outside.
  auto queue = *job->OpenQueue(kTensor, 4, Later());
  ASSERT_EQ(queue->BeginStep(7), absl::OkStatus());
  for (uint64_t i = 0; i < 6; ++i) {
    ASSERT_EQ(queue->Push({{tensors[i], Access::kUpdate}}, i, Later()),
              absl::OkStatus());
  }
  std::vector<Ready> held;
  for (int i = 0; i < 4; ++i) {
    auto ready = queue->Next(Later());
    ASSERT_TRUE(ready.ok() && ready->pins.ok());
    held.push_back(*std::move(ready));
  }
  Revive();
  EXPECT_TRUE(absl::IsFailedPrecondition(queue->Next(Later()).status()))
      << "only its own pins are in the way, also there";
  held.clear();
  std::set<uint64_t> tags;
  for (int i = 0; i < 2; ++i) {
    const auto ready = queue->Next(Later());
    ASSERT_TRUE(ready.ok()) << ready.status();
    tags.insert(ready->tag);
    ASSERT_TRUE(ready->pins.ok()) << ready->pins.status();
    EXPECT_TRUE(HasPattern(ready->pins->front().data(),
                           static_cast<uint8_t>(ready->tag)));
  }
  EXPECT_EQ(tags, (std::set<uint64_t>{4, 5}));
  EXPECT_TRUE(absl::IsFailedPrecondition(queue->BeginStep(8)));
  EXPECT_EQ(queue->CommitStep({7}), absl::OkStatus());
  EXPECT_EQ(queue->BeginStep(8), absl::OkStatus());
}

// What is said while there is no daemon waits for the next one.
TEST_F(RevivedDaemonTest, WhatIsSaidMeanwhileIsHeard) {
  auto job = *ConnectAs(daemon_, kMemory);
  const std::vector<TensorId> tensors = Filled(*job, 2);
  auto queue = *job->OpenQueue(kTensor, 2, Later());
  ASSERT_EQ(queue->Push({{tensors[0], Access::kOverwrite}}, 1, Later()),
            absl::OkStatus());
  auto ready = queue->Next(Later());
  ASSERT_TRUE(ready.ok() && ready->pins.ok());
  Kill();
  WritePattern(ready->pins->front().data(), 77);
  ready->pins->clear();
  ASSERT_EQ(queue->Push({{tensors[0], Access::kRead}}, 2, Later()),
            absl::OkStatus());
  std::atomic<bool> was_registered = false;
  std::thread other([&] {
    const auto made = RegisterOf(*job, "meanwhile", kTensor);
    EXPECT_TRUE(made.ok()) << made.status();
    was_registered = made.ok();
  });
  daemon_.Start();
  const auto again = queue->Next(Later());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->tag, 2u);
  EXPECT_TRUE(HasPattern(again->pins->front().data(), 77));
  other.join();
  EXPECT_TRUE(was_registered);
}

TEST_F(RevivedDaemonTest, QueuesOfBytesGoOn) {
  auto job = *ConnectAs(daemon_, kMemory);
  const std::vector<TensorId> tensors = Filled(*job, 6);
  auto queue = *job->OpenBytes(2 * kTensor);
  const auto have = [&](const std::vector<size_t>& which,
                        const std::vector<uint64_t>& in_use)
      -> absl::StatusOr<std::vector<Pin>> {
    std::vector<Want> wants;
    for (const size_t each : which) {
      wants.push_back({tensors[each], Access::kRead});
    }
    const auto request = queue->Push(wants, in_use, Later());
    if (!request.ok()) return request.status();
    while (true) {
      auto awaited = queue->Await(*request, Later());
      if (!awaited.ok()) return awaited.status();
      for (const uint64_t token : awaited->recalls) queue->Keep(token);
      if (awaited->pins.has_value()) return *std::move(awaited->pins);
    }
  };
  auto some = have({0, 1}, {});
  ASSERT_TRUE(some.ok()) << some.status();
  // More than there is room for beside those in use.
  std::vector<uint64_t> tokens;
  for (const Pin& each : *some) tokens.push_back(each.token());
  auto beyond = have({2, 3, 4, 5}, tokens);
  ASSERT_TRUE(beyond.ok()) << beyond.status();
  Revive();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(HasPattern((*beyond)[i].data(), static_cast<uint8_t>(i + 2)));
  }
  auto again = have({0}, {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(HasPattern(again->front().data(), 0));
  beyond->clear();
  some->clear();
  again->clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto one = have({i}, {});
    ASSERT_TRUE(one.ok()) << one.status();
    EXPECT_TRUE(HasPattern(one->front().data(), static_cast<uint8_t>(i)));
  }
  queue.reset();
  EXPECT_EQ(job->Close(Later()), absl::OkStatus());
  job.reset();
  EXPECT_EQ(UsedMemory(daemon_), 0);
}

TEST_F(RevivedDaemonTest, MemoryThatGrewIsThere) {
  auto job = *ConnectAs(daemon_, kMemory, "", kMemory);
  ASSERT_EQ(job->GrowMemory(kMemory / 2), absl::OkStatus());
  const std::vector<TensorId> tensors = Filled(*job, 7);
  Revive();
  ASSERT_EQ(job->GrowMemory(kMemory / 2), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(job->GrowMemory(4096)));
  EXPECT_EQ(UsedMemory(daemon_), 2 * kMemory);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(Holds(*job, tensors[i], static_cast<uint8_t>(i)));
  }
  Revive();
  EXPECT_EQ(job->GetStats().host.budget_bytes, 2 * kMemory);
  EXPECT_EQ(job->Close(Later()), absl::OkStatus());
  job.reset();
  EXPECT_EQ(UsedMemory(daemon_), 0);
}

// Whoever has gone meanwhile has nothing any more, and others what they had.
TEST_F(RevivedDaemonTest, WhatAProcessHadThatHasGoneIsFreed) {
  if (!kChildrenHaveThreads) GTEST_SKIP() << "children have no threads here";
  auto job = *ConnectAs(daemon_, kMemory);
  const std::vector<TensorId> tensors = Filled(*job, 6);
  PlayedProcess other([&](PlayedProcess::Stage& stage) {
    auto own = ConnectAs(daemon_, kMemory, "other");
    if (!own.ok()) return;
    const auto made = RegisterOf(**own, "x", kTensor);
    if (!made.ok() || !FillOf(**own, *made, 1)) return;
    stage.Tell();
    stage.Await();
  });
  ASSERT_TRUE(other.HasTold());
  EXPECT_EQ(UsedMemory(daemon_), 2 * kMemory);
  Kill();
  other.Kill();
  daemon_.Start();
  EXPECT_TRUE(Holds(*job, tensors[0], 0));
  EXPECT_EQ(UsedMemory(daemon_), kMemory);
  EXPECT_EQ(daemon_.Status()->jobs.size(), 1u);
  job.reset();
  EXPECT_TRUE(daemon_.WaitUntil([&] { return UsedMemory(daemon_) == 0; }));
  EXPECT_THAT(daemon_.Kept(), testing::IsEmpty());
  EXPECT_TRUE(daemon_.WaitUntil([&] { return daemon_.OnPath().size() == 1; }))
      << "the daemon's own";
}

TEST_F(RevivedDaemonTest, WhereNothingWasKeptTheProcessHearsSo) {
  auto job = *ConnectAs(daemon_, kMemory);
  const std::vector<TensorId> tensors = Filled(*job, 2);
  Kill();
  daemon_.ForgetKept();
  daemon_.Start();
  const auto pin = job->Acquire(tensors[0], Access::kRead, Later());
  EXPECT_TRUE(absl::IsUnavailable(pin.status())) << pin.status();
  EXPECT_THAT(std::string(pin.status().message()),
              testing::HasSubstr("has nothing of the runtime"));
  EXPECT_EQ(job->Close(Later()), absl::OkStatus());
  job.reset();
  EXPECT_EQ(UsedMemory(daemon_), 0);
}

TEST_F(RevivedDaemonTest, WhereAPartWasNotKeptNothingOfItIsBelieved) {
  for (const char* part : {"-memory", "-lock0", "-image"}) {
    auto job = *ConnectAs(daemon_, kMemory);
    const std::vector<TensorId> tensors = Filled(*job, 2);
    Kill();
    daemon_.ForgetKept(part);
    daemon_.Start();
    const auto pin = job->Acquire(tensors[0], Access::kRead, Later());
    EXPECT_TRUE(absl::IsUnavailable(pin.status())) << part << pin.status();
    job.reset();
    EXPECT_EQ(UsedMemory(daemon_), 0) << part;
    EXPECT_THAT(daemon_.Kept(), testing::IsEmpty()) << part;
    // Which directory it had stands in the image alone: that one goes as the
    // next job begins.
    if (std::string(part) == "-image") continue;
    EXPECT_TRUE(daemon_.WaitUntil([&] { return daemon_.OnPath().size() == 1; }))
        << part;
  }
}

TEST_F(RevivedDaemonTest, ADaemonThatDoesNotComeIsNotWaitedForForEver) {
  auto job = *ConnectAs(daemon_, kMemory, "", 0, absl::Seconds(1));
  const std::vector<TensorId> tensors = Filled(*job, 1);
  const absl::Time begun = absl::Now();
  Kill();
  const auto pin = job->Acquire(tensors[0], Access::kRead, Later());
  EXPECT_TRUE(absl::IsUnavailable(pin.status())) << pin.status();
  EXPECT_LT(absl::Now() - begun, absl::Seconds(20));
  EXPECT_EQ(job->Close(Later()), absl::OkStatus());
}

// A manager that reads nothing has no room at last.
TEST_F(RevivedDaemonTest, WhoIsNotKeptIsTold) {
  for (int i = 0; i < 120; ++i) {
    ASSERT_TRUE(ConnectAs(daemon_, kMemory, "lost").ok());
  }
  const ChildResult& ended = daemon_.End();
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_THAT(ended.errors, testing::HasSubstr("it goes with this daemon: "
                                               "nobody keeps descriptors"));
}

// One that ends as it was told takes its jobs along, and keeps nothing.
TEST_F(RevivedDaemonTest, AnEndIsNoDeath) {
  auto job = *ConnectAs(daemon_, kMemory);
  const std::vector<TensorId> tensors = Filled(*job, 2);
  auto held = job->Acquire(tensors[1], Access::kRead, Later());
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_THAT(daemon_.Kept(), testing::SizeIs(3));
  EXPECT_EQ(daemon_.End().exit_code, 0);
  EXPECT_THAT(daemon_.Kept(), testing::IsEmpty());
  const auto pin = job->Acquire(tensors[0], Access::kRead, Later());
  EXPECT_TRUE(absl::IsUnavailable(pin.status())) << pin.status();
  EXPECT_TRUE(HasPattern(held->data(), 1));
}

}  // namespace
}  // namespace terrace
