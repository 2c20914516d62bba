// A customer with threads: who answers, and that nothing is lost. The thread
// sanitiser runs it.
#include "terrace/recall_thread.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "tests/contract/contract_fixture.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

// Pins by tensor, as threads use them. A pin that is recalled while it is in
// use, or before it is noted here, ends with its use.
class SharedPins {
 public:
  SharedPins(ByteQueue& queue, int64_t* contents)
      : queue_(queue), contents_(contents) {}

  // False: the tensor is not pinned, or is to go.
  bool Use(int64_t tensor, uint64_t* token) {
    MutexLock lock(mutex_);
    const auto found = held_.find(tensor);
    if (found == held_.end() || found->second.wanted) return false;
    ++found->second.uses;
    *token = found->second.pin.token();
    Add(found->second, tensor);
    return true;
  }
  // In use by its caller; false: another thread has noted one meanwhile.
  bool Note(int64_t tensor, Pin pin) {
    MutexLock lock(mutex_);
    if (held_.contains(tensor)) return false;
    Held& held = held_[tensor];
    held.wanted = early_.erase(pin.token()) > 0;
    held.uses = 1;
    held.pin = std::move(pin);
    Add(held, tensor);
    return true;
  }
  void EndUse(int64_t tensor) {
    MutexLock lock(mutex_);
    Held& held = held_.at(tensor);
    if (--held.uses == 0 && held.wanted) held_.erase(tensor);
  }
  void Answer(uint64_t token) {
    MutexLock lock(mutex_);
    ++answered_;
    for (auto& [tensor, held] : held_) {
      if (held.pin.token() != token) continue;
      if (held.uses == 0) {
        held_.erase(tensor);
        return;
      }
      held.wanted = true;
      return queue_.Keep(token);
    }
    early_.insert({token, true});
    queue_.Keep(token);
  }
  void Clear() {
    MutexLock lock(mutex_);
    held_.clear();
  }
  int64_t answered() {
    MutexLock lock(mutex_);
    return answered_;
  }

 private:
  struct Held {
    Pin pin;
    int uses = 0;
    bool wanted = false;
  };

  // Each use adds one to the tensor's first number, which the test counts too.
  void Add(Held& held, int64_t tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto* const number = reinterpret_cast<int64_t*>(held.pin.data().data());
    EXPECT_EQ(*number, contents_[tensor]);
    contents_[tensor] = ++*number;
  }

  ByteQueue& queue_;
  int64_t* const contents_;
  Mutex mutex_;
  std::map<int64_t, Held> held_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, bool> early_ ABSL_GUARDED_BY(mutex_);
  int64_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
};

class RecallThreadContract : public ContractTest {
 protected:
  static constexpr int kTensors = 12;

  void Open(int places) {
    Make(places);
    auto queue = runtime().OpenBytes(places * kPlace);
    ASSERT_TRUE(queue.ok()) << queue.status();
    queue_ = *std::move(queue);
    tensors_ = world().RegisterMany(kTensors, kPage);
    for (const TensorId tensor : tensors_) {
      Pin pin = Have(tensor, Access::kOverwrite, {}, [](uint64_t) {});
      std::fill(pin.data().begin(), pin.data().end(), std::byte{0});
    }
  }
  template <typename Answer>
  Pin Have(TensorId tensor, Access access, std::vector<uint64_t> in_use,
           const Answer& answer) {
    const Want want{tensor, access};
    const auto request =
        queue_->Push({&want, 1}, in_use, absl::InfiniteFuture());
    EXPECT_TRUE(request.ok()) << request.status();
    while (request.ok()) {
      absl::StatusOr<Awaited> news =
          queue_->Await(*request, absl::InfiniteFuture());
      EXPECT_TRUE(news.ok()) << news.status();
      if (!news.ok()) break;
      for (const uint64_t token : news->recalls) answer(token);
      if (!news->pins.has_value()) continue;
      EXPECT_TRUE(news->pins->ok()) << news->pins->status();
      if (!news->pins->ok()) break;
      return std::move((*news->pins)->front());
    }
    return Pin();
  }

  std::unique_ptr<ByteQueue> queue_;
  std::vector<TensorId> tensors_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, RecallThreadContract,
                         testing::Values(TestWorld::kMemory, TestWorld::kUring,
                                         TestWorld::kThreads),
                         WorldParamName);

TEST_P(RecallThreadContract, AnswersWhereNoThreadWaits) {
  Open(2);
  Pin a = Have(tensors_[0], Access::kRead, {}, [](uint64_t) {});
  std::atomic<uint64_t> answered = 0;
  auto thread = RecallThread::Start(*queue_, [&](uint64_t token) {
    EXPECT_EQ(token, a.token());
    a.ReleaseUnchanged();
    answered = token;
  });
  ASSERT_TRUE(thread.ok()) << thread.status();
  const uint64_t token = a.token();
  auto other = runtime().Acquire(tensors_[0], Access::kUpdate, Shortly());
  EXPECT_TRUE(absl::IsResourceExhausted(other.status()));  // all is promised
  // The group wants to write it, and no thread is in Await.
  const Want want{tensors_[0], Access::kUpdate};
  const auto request = queue_->Push({&want, 1}, {}, Soon());
  ASSERT_TRUE(request.ok());
  EXPECT_TRUE(world().WaitUntil([&] { return answered == token; }));
  auto news = queue_->Await(*request, Soon());
  ASSERT_TRUE(news.ok());
  EXPECT_TRUE(news->pins.has_value() && news->pins->ok());
}

// What is idle beyond the window is a resident like any other.
TEST_P(RecallThreadContract, IdlePinsMakeRoomForAWindow) {
  Make(3);
  auto queue = runtime().OpenBytes(2 * kPlace);
  ASSERT_TRUE(queue.ok()) << queue.status();
  queue_ = *std::move(queue);
  tensors_ = world().RegisterMany(4, kPage);
  std::vector<Pin> pins;
  for (size_t i = 0; i < 3; ++i) {
    pins.push_back(Have(tensors_[i], Access::kOverwrite, {}, [](uint64_t) {}));
    std::fill(pins.back().data().begin(), pins.back().data().end(),
              std::byte{0});
  }
  auto thread = RecallThread::Start(*queue_, [&](uint64_t token) {
    for (Pin& pin : pins) {
      if (pin.token() == token) pin.Release();
    }
  });
  ASSERT_TRUE(thread.ok()) << thread.status();
  const auto own = runtime().OpenQueue(kPage, 1, Soon());
  EXPECT_TRUE(own.ok()) << own.status();
  thread->reset();
  EXPECT_EQ(stats().bytes.recalls, 1);
  for (Pin& pin : pins) {
    if (pin.valid()) pin.Release();
  }
}

TEST_P(RecallThreadContract, DoesNotExistInAChild) {
  Open(2);
  auto thread = RecallThread::Start(*queue_, [](uint64_t) {});
  ASSERT_TRUE(thread.ok());
  EXPECT_TRUE(InChild([&] {
    thread->reset();
    queue_.reset();  // where the parent's thread waits
    return true;
  }));
}

TEST_P(RecallThreadContract, ThreadsThatPinAndUnpinLoseNothing) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 400;
  Open(5);
  std::vector<int64_t> contents(kTensors);
  SharedPins pins(*queue_, contents.data());
  const auto answer = [&](uint64_t token) { pins.Answer(token); };
  auto recalls = RecallThread::Start(*queue_, answer);
  ASSERT_TRUE(recalls.ok());
  std::atomic<int64_t> uses = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(static_cast<uint64_t>(i));
      for (int round = 0; round < kRounds; ++round) {
        // One within the other, the lower first: threads wait for no circle.
        const auto outer = static_cast<int64_t>(random() % (kTensors - 1));
        const int64_t inner =
            outer + 1 +
            static_cast<int64_t>(random() %
                                 static_cast<uint64_t>(kTensors - 1 - outer));
        std::vector<uint64_t> in_use;
        for (const int64_t tensor : {outer, inner}) {
          uint64_t token = 0;
          while (!pins.Use(tensor, &token)) {
            Pin pin = Have(tensors_[static_cast<size_t>(tensor)],
                           Access::kUpdate, in_use, answer);
            token = pin.token();
            if (pins.Note(tensor, std::move(pin))) break;
          }
          in_use.push_back(token);
          ++uses;
        }
        pins.EndUse(inner);
        pins.EndUse(outer);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(uses, 2 * kThreads * kRounds);
  recalls->reset();
  pins.Clear();
  EXPECT_EQ(pins.answered(), stats().bytes.recalls);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    Pin pin = Have(tensors_[i], Access::kRead, {}, [](uint64_t) {});
    EXPECT_EQ(*reinterpret_cast<const int64_t*>(pin.data().data()),
              contents[i]);
  }
}

}  // namespace
}  // namespace terrace
