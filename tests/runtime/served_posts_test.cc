// What a thread posts to a runtime by PostAndServe: it is served there and
// then where nothing of it is for links, and by the mover soon where it is.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "base/mutex.h"
#include "base/threads/own_thread.h"
#include "gtest/gtest.h"
#include "runtime/local_parts.h"
#include "runtime/local_runtime.h"
#include "runtime/messages/answer_sinks.h"
#include "tests/support/runtime_fixture.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

Time Later() { return absl::Now() + absl::Seconds(60); }

uint8_t SeedOf(int round, int tensor) {
  return static_cast<uint8_t>(100 * round + tensor);
}

// Which thread gave the last answer, and how many there are.
class Answers final : public ClientSink {
 public:
  void Deliver(uint64_t /*number*/, Answer answer) override {
    MutexLock lock(mutex_);
    by_ = std::this_thread::get_id();
    ++count_;
    last_ = std::move(answer);
    came_.SignalAll();
  }
  std::shared_ptr<QueueSink> OpenQueue(int64_t /*id*/) override {
    return std::make_shared<Queue>(*this);
  }
  std::shared_ptr<ByteSink> OpenBytes(int64_t /*id*/) override {
    return nullptr;
  }

  std::thread::id by() {
    MutexLock lock(mutex_);
    return by_;
  }
  Answer AwaitLast(int count) {
    MutexLock lock(mutex_);
    while (count_ < count) came_.Wait(mutex_);
    return last_;
  }

 private:
  // How its last group ended.
  class Queue final : public QueueSink {
   public:
    explicit Queue(Answers& answers) : answers_(answers) {}
    void Publish(std::vector<ReadyGroup>* ready, bool /*own_pins*/,
                 uint64_t /*processed*/,
                 const absl::Status& /*also*/) override {
      for (const ReadyGroup& each : *ready) {
        answers_.Deliver(0, each.grants.status());
      }
      ready->clear();
    }
    void Close() override {}

   private:
    Answers& answers_;
  };

  Mutex mutex_;
  CondVar came_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread::id by_ ABSL_GUARDED_BY(mutex_);
  Answer last_ ABSL_GUARDED_BY(mutex_);
};

class ServedPostsTest : public testing::Test {
 protected:
  void SetUp() override {
    Options options;
    options.host_budget_bytes = 1 << 20;
    options.paths = {path_.path()};
    options.threads = 1;
    options.huge_pages = HugePages::kOff;
    auto parts = PartsOf(options);
    ASSERT_TRUE(parts.ok()) << parts.status();
    auto runtime = LocalRuntime::Start(*std::move(parts));
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    answers_ = std::make_shared<Answers>();
    client_ = runtime_->mover().ports().Join(answers_);
  }
  void Post(Message message) {
    runtime_->mover().inbox()->Post(std::move(message));
  }
  OpenRequest Opening(int slots) {
    return {.id = {client_, ++number_},
            .slot_bytes = 4096,
            .slots = slots,
            .deadline = absl::InfiniteFuture()};
  }

  const TemporaryDirectory path_;
  std::unique_ptr<LocalRuntime> runtime_;
  std::shared_ptr<Answers> answers_;
  ClientId client_ = kLocalClient;
  uint64_t number_ = 0;
};

// The mover's own thread may be at it the first times.
TEST_F(ServedPostsTest, AnswerComesBeforeItReturns) {
  int here = 0;
  for (int i = 1; i <= 1000; ++i) {
    runtime_->PostAndServe([&] { Post(Request(Opening(1))); });
    const int64_t queue = std::get<OpenedQueue>(answers_->AwaitLast(i)).id;
    if (answers_->by() == std::this_thread::get_id()) ++here;
    runtime_->PostAndServe([&] { Post(Request(CloseQueueRequest{queue})); });
  }
  EXPECT_GT(here, 500);
}

TEST_F(ServedPostsTest, WhatAsksForLinksIsTheMoversOwn) {
  for (int i = 1; i <= 100; ++i) {
    runtime_->PostAndServe([&] {
      Post(Request(StatsRequest{{client_, ++number_}}));
    });
    EXPECT_TRUE(std::holds_alternative<Stats>(answers_->AwaitLast(i)));
    EXPECT_NE(answers_->by(), std::this_thread::get_id());
  }
}

// The mover sleeps, and knows nothing of a deadline that came since.
TEST_F(ServedPostsTest, WhatWaitsEndsByItsDeadline) {
  TensorSpec spec;
  spec.name = "a";
  spec.size_bytes = 4096;
  const TensorId tensor = *runtime_->Register(spec);
  runtime_->PostAndServe([&] { Post(Request(Opening(2))); });
  const auto queue = std::get<OpenedQueue>(answers_->AwaitLast(1)).id;
  const auto push = [&](absl::Time deadline) {
    PushRequest request{.queue = queue, .deadline = deadline};
    request.wants = {{tensor, Access::kOverwrite}};
    runtime_->PostAndServe([&] { Post(Request(request)); });
  };
  push(absl::InfiniteFuture());
  EXPECT_EQ(std::get<absl::Status>(answers_->AwaitLast(2)), absl::OkStatus());
  // That pin writes.
  push(runtime_->clock().Now() + absl::Milliseconds(20));
  const auto late = std::get<absl::Status>(answers_->AwaitLast(3));
  EXPECT_TRUE(absl::IsResourceExhausted(late)) << late;
}

// What others post meanwhile is heard, with a wake-up of its own or without.
TEST_F(ServedPostsTest, OthersPostBesideIt) {
  constexpr int kEach = 20000;
  std::thread other = StartThread("beside", [&] {
    for (int i = 0; i < kEach; ++i) {
      Post(OwnerRequest(
          ListRequest{{client_, 1000000 + static_cast<uint64_t>(i)}, {}}));
    }
  });
  for (int i = 0; i < kEach; ++i) {
    runtime_->PostAndServe([&] {
      Post(Request(UnregisterRequest{{client_, ++number_}, {9}}));
    });
  }
  other.join();
  answers_->AwaitLast(2 * kEach);
}

// More tensors than memory has room for go to the disk and come back, whoever
// turns the mover.
TEST_F(ServedPostsTest, WhatGoesToTheDiskIsWhatItWas) {
  constexpr int kTensors = 64;
  std::vector<TensorId> tensors;
  for (int i = 0; i < kTensors; ++i) {
    TensorSpec spec;
    spec.name = std::to_string(i);
    spec.size_bytes = 60 << 10;
    tensors.push_back(*runtime_->Register(spec));
  }
  std::atomic<bool> ends = false;
  std::thread server = StartThread("serves", [&] {
    // A hint is the mover's own; what waits for its answer does not flood it.
    for (int asked = 1; !ends; ++asked) {
      runtime_->PostAndServe([&] {
        if (asked % 2 == 0) {
          Post(Request(PrefetchRequest{{tensors[7], tensors[40]}}));
        }
        Post(Request(UnregisterRequest{{client_, ++number_}, {1000}}));
      });
      answers_->AwaitLast(asked);
    }
  });
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kTensors; ++i) {
      auto pin = runtime_->Acquire(
          tensors[i], round == 0 ? Access::kOverwrite : Access::kUpdate,
          Later());
      EXPECT_TRUE(pin.ok()) << pin.status();
      if (!pin.ok()) continue;
      if (round > 0) {
        EXPECT_TRUE(HasPattern(pin->data(), SeedOf(round - 1, i)));
      }
      WritePattern(pin->data(), SeedOf(round, i));
    }
  }
  ends = true;
  server.join();
}

}  // namespace
}  // namespace terrace
