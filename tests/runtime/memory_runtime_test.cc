// A Runtime without a mover: the letter of terrace/runtime.h and request.h as
// far as it has what they speak of, and the optimizer on it, bit for bit.
#include "terrace/memory_runtime.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/executor.h"
#include "gtest/gtest.h"
#include "terrace/optimizer.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/support/live_threads.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

constexpr int64_t kSize = 4096;

Time Soon() { return absl::Now() + absl::Seconds(60); }
Time Shortly() { return absl::Now() + absl::Milliseconds(20); }

class MemoryRuntimeTest : public testing::Test {
 protected:
  static ThreadPool MakeThreads(int threads) {
    auto made = ThreadPool::Create(threads);
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  }
  void SetUp() override {
    runtime_ = MemoryRuntime::Create(MakeThreads(2));
    ASSERT_TRUE(runtime_->Reserve(16 * kSize).ok());
    queue_ = OpenQueue();
  }

  TensorId Register(const std::string& name, int64_t size_bytes = kSize) {
    const absl::StatusOr<TensorId> id =
        runtime_->Register({.name = name, .size_bytes = size_bytes});
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(TensorId());
  }
  std::unique_ptr<RequestQueue> OpenQueue() {
    auto queue = runtime_->OpenQueue(kSize, 4, Soon());
    EXPECT_TRUE(queue.ok()) << queue.status();
    return *std::move(queue);
  }
  static Pin Take(RequestQueue& queue, TensorId tensor, Access access) {
    EXPECT_TRUE(queue.Push({{tensor, access}}, 7, Soon()).ok());
    absl::StatusOr<Ready> ready = queue.Next(Soon());
    EXPECT_TRUE(ready.ok() && ready->pins.ok());
    EXPECT_EQ(ready->tag, 7);
    return std::move(ready->pins->front());
  }
  void Fill(TensorId tensor, std::byte value) {
    const Pin pin = Take(*queue_, tensor, Access::kOverwrite);
    std::fill(pin.data().begin(), pin.data().end(), value);
  }
  bool Holds(TensorId tensor, std::byte value) {
    const Pin pin = Take(*queue_, tensor, Access::kRead);
    return std::all_of(pin.data().begin(), pin.data().end(),
                       [value](std::byte b) { return b == value; });
  }

  std::unique_ptr<MemoryRuntime> runtime_;
  std::unique_ptr<RequestQueue> queue_;
};

TEST_F(MemoryRuntimeTest, TensorsKeepWhatWasWrittenAndLieApart) {
  std::vector<TensorId> tensors;
  for (int i = 0; i < 16; ++i) {
    tensors.push_back(Register(absl::StrCat("t", i), kSize - i));
    Fill(tensors.back(), std::byte(i + 1));
  }
  for (int i = 0; i < 16; ++i) {
    EXPECT_TRUE(Holds(tensors[i], std::byte(i + 1))) << i;
    const Pin pin = Take(*queue_, tensors[i], Access::kRead);
    EXPECT_EQ(pin.data().size(), kSize - i);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pin.data().data()) % 4096, 0);
  }
}

TEST_F(MemoryRuntimeTest, WhatIsNotReservedIsRefusedWithItsBytes) {
  Register("fits", 16 * kSize);
  const absl::Status refused =
      runtime_->Register({.name = "more", .size_bytes = kSize}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(refused.message().find("4096"), std::string::npos) << refused;
  ASSERT_TRUE(runtime_->Reserve(kSize).ok());
  Register("more");
  EXPECT_TRUE(absl::IsResourceExhausted(runtime_->Reserve(INT64_MAX / 4)));
}

TEST_F(MemoryRuntimeTest, PiecesWithoutTensorsAreGivenBack) {
  const TensorId kept = Register("kept");
  Fill(kept, std::byte{3});
  ASSERT_TRUE(runtime_->Reserve(1 << 20).ok());
  const TensorId large = Register("large", 1 << 20);
  EXPECT_EQ(runtime_->GetStats().host.reserved_bytes, (1 << 20) + 16 * kSize);
  EXPECT_EQ(runtime_->GetStats().host.used_bytes, (1 << 20) + kSize);
  runtime_->ReleaseUnused();
  EXPECT_EQ(runtime_->GetStats().host.reserved_bytes, (1 << 20) + 16 * kSize);
  ASSERT_TRUE(runtime_->Unregister(large).ok());
  runtime_->ReleaseUnused();
  EXPECT_EQ(runtime_->GetStats().host.reserved_bytes, 16 * kSize);
  EXPECT_TRUE(Holds(kept, std::byte{3}));
  EXPECT_EQ(runtime_->GetStats().host.peak_bytes, (1 << 20) + kSize);
}

TEST_F(MemoryRuntimeTest, NamesAreTakenOnceAndFreeAgain) {
  const TensorId first = Register("a");
  EXPECT_TRUE(absl::IsAlreadyExists(
      runtime_->Register({.name = "a", .size_bytes = 1}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      runtime_->Register({.name = "", .size_bytes = 1}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      runtime_->Register({.name = "b", .size_bytes = 0}).status()));
  ASSERT_TRUE(runtime_->Unregister(first).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(runtime_->Unregister(first)));
  EXPECT_NE(Register("a"), first);
}

TEST_F(MemoryRuntimeTest, WhatIsPinnedOrWantedStays) {
  const TensorId a = Register("a");
  Pin pin = Take(*queue_, a, Access::kOverwrite);
  EXPECT_TRUE(absl::IsFailedPrecondition(runtime_->Unregister(a)));
  pin.Release();
  ASSERT_TRUE(queue_->Push({{a, Access::kRead}}, 0, Soon()).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(runtime_->Unregister(a)));
  queue_.reset();
  EXPECT_TRUE(runtime_->Unregister(a).ok());
}

TEST_F(MemoryRuntimeTest, AWriterIsAloneAndReadersAreTogether) {
  const TensorId a = Register("a");
  Fill(a, std::byte{1});
  const auto other = OpenQueue();
  Pin read = Take(*queue_, a, Access::kRead);
  Pin beside = Take(*other, a, Access::kRead);
  ASSERT_TRUE(other->Push({{a, Access::kUpdate}}, 1, Soon()).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(other->Next(Shortly()).status()));
  beside.Release();
  std::thread reader([&read] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    read.Release();
  });
  const absl::StatusOr<Ready> ready = other->Next(Soon());
  reader.join();
  ASSERT_TRUE(ready.ok() && ready->pins.ok()) << ready.status();
  ASSERT_TRUE(queue_->Push({{a, Access::kRead}}, 1, Shortly()).ok());
  const absl::StatusOr<Ready> late = queue_->Next(Soon());
  ASSERT_TRUE(late.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(late->pins.status()));
  EXPECT_NE(late->pins.status().message().find("'a'"), std::string::npos);
}

TEST_F(MemoryRuntimeTest, AQueueThatOnlyItsOwnPinsBlockSaysSoAtOnce) {
  const TensorId a = Register("a");
  const Pin pin = Take(*queue_, a, Access::kOverwrite);
  ASSERT_TRUE(queue_->Push({{a, Access::kRead}}, 1, Soon()).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(queue_->Next(Soon()).status()));
}

TEST_F(MemoryRuntimeTest, AWakeEndsANextThatWaitsForOthersPins) {
  const TensorId a = Register("a");
  Take(*queue_, a, Access::kOverwrite).Release();
  const auto other = OpenQueue();
  Pin pin = Take(*other, a, Access::kUpdate);
  ASSERT_TRUE(queue_->Push({{a, Access::kRead}}, 3, Soon()).ok());
  std::thread waits(
      [&] { EXPECT_TRUE(absl::IsAborted(queue_->Next(Soon()).status())); });
  queue_->Wake();
  waits.join();
  pin.Release();
  const absl::StatusOr<Ready> ready = queue_->Next(Soon());
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_EQ(ready->tag, 3);
}

TEST_F(MemoryRuntimeTest, WrongGroupsAreRefused) {
  const TensorId a = Register("a");
  const TensorId large = Register("large", 2 * kSize);
  const auto refused = [this](const std::vector<Want>& wants) {
    return absl::IsInvalidArgument(queue_->Push(wants, 0, Soon()));
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({{TensorId{99}, Access::kRead}}));
  EXPECT_TRUE(refused({{a, Access::kRead}, {a, Access::kRead}}));
  EXPECT_TRUE(refused({{large, Access::kRead}}));
  EXPECT_TRUE(refused(std::vector<Want>(5, {a, Access::kRead})));
  EXPECT_TRUE(absl::IsFailedPrecondition(queue_->Next(Soon()).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(runtime_->OpenQueue(0, 1, Soon()).status()));
}

TEST_F(MemoryRuntimeTest, ContentsAreThereOnceTheyWerePublished) {
  const TensorId a = Register("a");
  const auto read = [&] {
    EXPECT_TRUE(queue_->Push({{a, Access::kUpdate}}, 0, Soon()).ok());
    return queue_->Next(Soon())->pins.status();
  };
  EXPECT_TRUE(absl::IsFailedPrecondition(read()));
  Take(*queue_, a, Access::kOverwrite).Discard();
  EXPECT_TRUE(absl::IsFailedPrecondition(read()));
  Fill(a, std::byte{1});
  EXPECT_TRUE(read().ok());
  ASSERT_TRUE(queue_->BeginStep(1).ok());
  Take(*queue_, a, Access::kUpdate).Discard();
  EXPECT_TRUE(absl::IsDataLoss(read()));
  EXPECT_TRUE(absl::IsDataLoss(queue_->CommitStep({.step = 1})));
}

TEST_F(MemoryRuntimeTest, StepsAreOpenOneAtATime) {
  EXPECT_TRUE(absl::IsFailedPrecondition(queue_->CommitStep({.step = 1})));
  ASSERT_TRUE(queue_->BeginStep(1).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(queue_->BeginStep(2)));
  EXPECT_TRUE(absl::IsFailedPrecondition(queue_->CommitStep({.step = 2})));
  EXPECT_TRUE(queue_->CommitStep({.step = 1}).ok());
  ASSERT_TRUE(queue_->BeginStep(2).ok());
  EXPECT_TRUE(queue_->AbortStep().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(queue_->AbortStep()));
}

TEST_F(MemoryRuntimeTest, CloseNamesHoldersAndCancelsWhatWaits) {
  const TensorId a = Register("a");
  Pin pin = Take(*queue_, a, Access::kOverwrite);
  auto other = OpenQueue();
  ASSERT_TRUE(other->Push({{a, Access::kRead}}, 0, Soon()).ok());
  absl::Status waited;
  std::thread waiter([&] { waited = other->Next(Soon()).status(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const absl::Status held = runtime_->Close(Soon());
  waiter.join();
  EXPECT_TRUE(absl::IsCancelled(waited)) << waited;
  EXPECT_TRUE(absl::IsFailedPrecondition(held));
  EXPECT_NE(held.message().find("'a'"), std::string::npos) << held;
  EXPECT_TRUE(absl::IsCancelled(
      runtime_->Register({.name = "b", .size_bytes = 1}).status()));
  EXPECT_TRUE(absl::IsCancelled(runtime_->Reserve(kSize)));
  std::fill(pin.data().begin(), pin.data().end(), std::byte{1});
  pin.Release();
  other.reset();
  queue_.reset();
  EXPECT_TRUE(runtime_->Close(Soon()).ok());
  EXPECT_TRUE(runtime_->Close(Soon()).ok());
}

TEST_F(MemoryRuntimeTest, PinsOutliveTheirQueueAndTheirRuntime) {
  const TensorId a = Register("a");
  Pin pin = Take(*queue_, a, Access::kOverwrite);
  queue_.reset();
  runtime_.reset();
  std::fill(pin.data().begin(), pin.data().end(), std::byte{1});
  pin.Release();
}

TEST_F(MemoryRuntimeTest, AcquireTakesOneTensor) {
  const TensorId a = Register("a");
  absl::StatusOr<Pin> pin = runtime_->Acquire(a, Access::kOverwrite, Soon());
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_FALSE(runtime_->Acquire(a, Access::kOverwrite, Shortly()).ok());
  pin->Release();
  EXPECT_TRUE(runtime_->Acquire(a, Access::kRead, Soon()).ok());
}

TEST_F(MemoryRuntimeTest, AForkedChildHasNothingOfIt) {
  const TensorId a = Register("a");
  Pin pin = Take(*queue_, a, Access::kOverwrite);
  EXPECT_EQ(
      ExitCodeInChild([&] {
        const bool cancelled =
            absl::IsCancelled(
                runtime_->Register({.name = "b", .size_bytes = 1}).status()) &&
            absl::IsCancelled(runtime_->Reserve(1)) &&
            absl::IsCancelled(queue_->Push({{a, Access::kRead}}, 0, Soon())) &&
            absl::IsCancelled(queue_->Next(Soon()).status()) &&
            absl::IsCancelled(runtime_->Close(Soon()));
        pin.Release();
        queue_.reset();
        runtime_.reset();
        std::_Exit(cancelled ? 0 : 2);
      }),
      0);
  std::fill(pin.data().begin(), pin.data().end(), std::byte{1});
  pin.Release();
  EXPECT_TRUE(Holds(a, std::byte{1}));
}

TEST(ThreadPoolTest, TheLastRuntimeEndsThem) {
  const int64_t before = LiveThreads();
  auto threads = ThreadPool::Create(3);
  ASSERT_TRUE(threads.ok()) << threads.status();
  std::vector<std::unique_ptr<MemoryRuntime>> runtimes;
  for (int i = 0; i < 50; ++i) {
    runtimes.push_back(MemoryRuntime::Create(*threads));
  }
  *threads = ThreadPool();
  EXPECT_EQ(LiveThreads(), before + 3);
  runtimes.resize(1);
  EXPECT_EQ(LiveThreads(), before + 3);
  runtimes.clear();
  EXPECT_EQ(LiveThreads(), before);
  EXPECT_TRUE(absl::IsInvalidArgument(ThreadPool::Create(-1).status()));
}

// Each with a thread of its own, on three threads of kernels.
TEST(ThreadPoolTest, OptimizersOnSharedThreadsStepAsTheReference) {
  auto threads = ThreadPool::Create(3);
  ASSERT_TRUE(threads.ok());
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([i, shared = *threads] {
      Model model = Model::Mixed(static_cast<uint64_t>(i));
      OptimizerOptions options;
      options.chunk_bytes = 64 << 10;
      options.max_gradient_norm = 1;
      ReferenceOptimizer reference(model, options);
      auto runtime = MemoryRuntime::Create(shared);
      ASSERT_TRUE(runtime->Reserve(1 << 20).ok());
      auto optimizer =
          OffloadedOptimizer::Create(*runtime, model.specs(), options);
      ASSERT_TRUE(optimizer.ok()) << optimizer.status();
      for (int step = 1; step <= 5; ++step) {
        model.DrawGradients(step, 1);
        reference.Step({}, model);
        const absl::Status status =
            (*optimizer)->Step({}, model.data(), Soon());
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_EQ(reference.Difference(model), "") << "step " << step;
      }
      EXPECT_EQ(reference.StateDifference(**optimizer), "");
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace terrace
