// Threads that fetch, write, copy, fork and close over storages that enter
// and leave, in as many rounds as TERRACE_LIFE_ROUNDS says. Each thread writes
// bytes of its own in each storage, and reads them again: what it wrote is
// there, whether the storage is managed then or not.
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/libtorch/hook/life/fake_storage.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

constexpr int kThreads = 8;
constexpr int kStorages = 6;
constexpr int kUses = 6;  // of a thread in a round
constexpr int kForkEvery = 25;
constexpr int64_t kStressPage = 4096;

int Rounds() {
  const char* const rounds = std::getenv("TERRACE_LIFE_ROUNDS");
  return rounds == nullptr ? 200 : std::atoi(rounds);
}

class StorageLivesStress : public testing::Test {
 protected:
  StorageLivesStress()
      : world_(TestWorld::kMemory, {.budget_bytes = 10 * kStressPage}) {}

  void BeginRound() {
    hook_ = std::make_unique<FakeHook>(
        world_.runtime(), index_,
        ByteWindowOptions{.window_bytes = 8 * kStressPage});
    for (const auto& storage : storages_) storage->has_died = true;
    storages_.clear();
    std::vector<StorageLives::Storage> added;
    for (int i = 0; i < kStorages; ++i) {
      storages_.push_back(std::make_shared<FakeStorage>(
          "storage " + std::to_string(i), kStressPage, hook_->window()));
      added.push_back(storages_.back());
    }
    const absl::Status status = hook_->lives().Add(added);
    ASSERT_TRUE(status.ok()) << status;
    restores_ = round_ % 5 != 4;
  }

  void EndRound() {
    ASSERT_TRUE(hook_->lives().Close({.restore = restores_}).ok());
    for (const auto& storage : storages_) {
      EXPECT_EQ(storage->word().life(), Life::kGone);
      EXPECT_EQ(storage->is_refused(), !restores_);
    }
    hook_.reset();  // whatever threads have just ended
    ++round_;
  }

  // Unless a close refused it.
  void Use(int thread, FakeStorage& storage, const FakeStorage& other,
           uint64_t& written) {
    const auto used = hook_->Begin({&storage, &other});
    if (storage.is_refused()) {
      EXPECT_FALSE(restores_);
      return;
    }
    std::byte* const mine = storage.data() + 64 * thread;
    uint64_t read = 0;
    std::memcpy(&read, mine, sizeof(read));
    EXPECT_EQ(read, written);
    ++written;
    std::memcpy(mine, &written, sizeof(written));
    storage.MarkWritten();
  }

  // As the library's own copy, which waits for something else as well.
  void Copy(FakeStorage& storage) {
    StorageLife* const found = index_.registry().Find(storage.address());
    if (found == nullptr || !found->word().Pin().has_value()) return;
    hook_->window().BeginWaiting(*found);
    const absl::Status brought =
        OperationPins::BringOne(*found, FetchAsker::Caller::kCopy);
    EXPECT_TRUE(brought.ok()) << brought;
    hook_->window().EndWaiting(*found);
    OperationPins::Unpin(*found);
  }

  // It has its parent's storages, and none of their bytes.
  void Fork() {
    EXPECT_TRUE(InChild([this] {
      int found = 0;
      index_.registry().ForEachInChild([&](StorageLife&) { ++found; });
      return found <= kStorages;
    }));
  }

  void Close() {
    const absl::Status closed = hook_->lives().Close(
        {.restore = restores_, .patience = absl::Seconds(20)});
    EXPECT_TRUE(closed.ok()) << closed;
  }

  void FetchAhead(const FakeStorage& storage) {
    const WindowTensor* const one[] = {&storage};
    hook_->window().FetchAhead(one);
  }

  void Act(int thread, std::mt19937& random, std::vector<uint64_t>& written) {
    for (int use = 0; use < kUses; ++use) {
      const size_t at = random() % kStorages;
      FakeStorage& storage = *storages_[at];
      Use(thread, storage, *storages_[random() % kStorages], written[at]);
      if (thread == 0 && use == 2) Copy(storage);
      if (thread == 1) hook_->window().EvictAll();
      if (thread == 2) FetchAhead(*storages_[at]);
      if (thread == 3 && use == 1 && round_ % kForkEvery == 0) Fork();
      const bool closes = thread >= 4 && thread <= 5 &&
                          use == static_cast<int>(random() % kUses);
      if (closes) Close();
    }
  }

  TestRuntime world_;
  FakeIndex index_;
  std::unique_ptr<FakeHook> hook_;
  std::vector<std::shared_ptr<FakeStorage>> storages_;
  int round_ = 0;
  bool restores_ = true;
};

TEST_F(StorageLivesStress, ThreadsFetchWriteCopyForkAndClose) {
  const int rounds = Rounds();
  std::barrier<> turn(kThreads + 1);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<uint32_t>(thread));
      for (int round = 0; round < rounds; ++round) {
        turn.arrive_and_wait();
        std::vector<uint64_t> written(kStorages);
        Act(thread, random, written);
        turn.arrive_and_wait();
      }
    });
  }
  for (int round = 0; round < rounds; ++round) {
    BeginRound();
    turn.arrive_and_wait();
    turn.arrive_and_wait();
    EndRound();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace terrace
