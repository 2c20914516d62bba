// Threads that infer, train, lease, evict, fork and close over real storages,
// in as many rounds as TERRACE_LIFE_ROUNDS says: each has the values that it
// would have alone, before, during and after the close.
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

constexpr int kLayers = 6;
constexpr int kThreads = 8;
constexpr int kUses = 4;  // of a thread in a round

int Rounds() {
  const char* const rounds = std::getenv("TERRACE_LIFE_ROUNDS");
  return rounds == nullptr ? 15 : std::atoi(rounds);
}

// Of 16 KiB each; three have room.
class HookThreadsTest : public HookTest {
 protected:
  void BeginRound() {
    Make(64 << 10);
    weights_.clear();
    own_.clear();
    std::vector<NamedTensor> named;
    for (int i = 0; i < kLayers; ++i) {
      weights_.push_back(at::randn({64, 63}));
      named.push_back({"layer " + std::to_string(i), weights_.back()});
    }
    for (int i = 0; i < kThreads; ++i) {
      own_.push_back(at::zeros({64, 63}));
      named.push_back({"own " + std::to_string(i), own_.back()});
    }
    input_ = at::ones({4, 64});
    expected_ = Infer(weights_);
    const absl::Status managed = hook().Manage(named);
    ASSERT_TRUE(managed.ok()) << managed;
  }

  at::Tensor Infer(const std::vector<at::Tensor>& weights) const {
    at::Tensor sum = at::zeros({4, 63});
    for (const at::Tensor& weight : weights) {
      sum = sum + input_.mm(weight).tanh();
    }
    return sum;
  }

  void Close() {
    while (true) {
      const absl::Status closed = hook().Close(Hook::AtClose::kRestore);
      if (closed.ok()) return;
      // A lease: nothing has changed.
      ASSERT_TRUE(absl::IsFailedPrecondition(closed)) << closed;
      std::this_thread::yield();
    }
  }

  void Lease(int thread) {
    auto lease = hook().MakeLease(weights_[0], Hook::Access::kRead);
    if (!lease.ok()) {  // closed, or what is in use leaves no room
      EXPECT_TRUE(absl::IsInvalidArgument(lease.status()) ||
                  absl::IsResourceExhausted(lease.status()))
          << lease.status() << thread;
    }
  }

  void Act(int thread) {
    for (int use = 0; use < kUses; ++use) {
      EXPECT_TRUE(Infer(weights_).equal(expected_)) << thread;
      own_[static_cast<size_t>(thread)].add_(1);
      if (thread == 0) hook().EvictAll();
      if (thread == 1) Lease(thread);
      if (thread == 2 && use == 1) Close();
    }
  }

  std::vector<at::Tensor> weights_;
  std::vector<at::Tensor> own_;
  at::Tensor input_;
  at::Tensor expected_;
};

TEST_F(HookThreadsTest, InferWriteLeaseAndCloseInSmallRoom) {
  const int rounds = Rounds();
  std::barrier<> turn(kThreads + 1);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const c10::InferenceMode guard(false);
      for (int round = 0; round < rounds; ++round) {
        turn.arrive_and_wait();
        Act(thread);
        turn.arrive_and_wait();
      }
    });
  }
  for (int round = 0; round < rounds; ++round) {
    BeginRound();
    turn.arrive_and_wait();
    turn.arrive_and_wait();
    Close();
    EXPECT_TRUE(hook().error().ok()) << hook().error();
    for (const at::Tensor& own : own_) {
      EXPECT_TRUE(own.equal(at::full({64, 63}, kUses)));
    }
    EXPECT_TRUE(Infer(weights_).equal(expected_));
  }
  for (std::thread& thread : threads) thread.join();
}

// An operation of three cold tensors each, and four have room.
TEST_F(HookThreadsTest, TwoOperationsThatDoNotFitTogetherBothEnd) {
  Make(64 << 10);
  std::vector<at::Tensor> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(Managed(std::to_string(i), at::full({3000}, i)));
  }
  hook().EvictAll();
  const auto sum = [&](size_t first) {
    for (int i = 0; i < 100; ++i) {
      const at::Tensor stacked =
          at::stack({all[first], all[first + 1], all[first + 2]});
      EXPECT_EQ(stacked.sum().item<float>(),
                3000 * (3 * static_cast<float>(first) + 3));
    }
  };
  std::thread other(sum, 3);
  sum(0);
  other.join();
  EXPECT_TRUE(hook().error().ok()) << hook().error();
  EXPECT_EQ(hook().stats().failures, 0);
}

// The other one has room for one of each at most.
TEST_F(HookThreadsTest, OneOperationOverTwoHooks) {
  Make(1 << 20);
  TestRuntimeOptions options;
  options.budget_bytes = 32 << 10;
  TestRuntime small(TestWorld::kMemory, options);
  auto made = Hook::Create(small.runtime(), {.window_bytes = 32 << 10});
  ASSERT_TRUE(made.ok()) << made.status();
  std::vector<at::Tensor> mine;
  std::vector<at::Tensor> theirs;
  for (int i = 0; i < 5; ++i) {
    mine.push_back(Managed(std::to_string(i), at::full({3000}, i)));
    theirs.push_back(at::full({3000}, 10 * i));
    ASSERT_TRUE((*made)->Manage({{std::to_string(i), theirs.back()}}).ok());
  }
  const auto check = [](const std::vector<at::Tensor>& sums) {
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(sums[static_cast<size_t>(i)].equal(at::full({3000}, 11 * i)));
    }
  };
  const auto add = [&](const auto& first, const auto& second) {
    for (int i = 0; i < 20; ++i) check(at::_foreach_add(first, second));
  };
  std::thread other([&] { add(theirs, mine); });
  add(mine, theirs);
  other.join();
  EXPECT_TRUE(hook().error().ok()) << hook().error();
  EXPECT_TRUE((*made)->error().ok()) << (*made)->error();
  EXPECT_GT((*made)->stats().over_budget_bytes, 0);
}

// What a program leases is not what an operation waits for.
TEST_F(HookThreadsTest, AnOperationDoesNotWaitForALease) {
  Make(48 << 10);
  const at::Tensor leased = Managed("leased", at::ones({6000}));
  const at::Tensor first = Managed("first", at::ones({3000}));
  const at::Tensor second = Managed("second", at::ones({3000}));
  const auto lease = hook().MakeLease(leased, Hook::Access::kRead);
  ASSERT_TRUE(lease.ok()) << lease.status();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ((first + second).sum().item<float>(), 6000);
  }
  EXPECT_TRUE(hook().error().ok()) << hook().error();
}

// Each tensor is dropped while another thread evicts it, whose reference may be
// the last one then.
TEST_F(HookThreadsTest, TensorsThatEndWhileAnotherThreadEvictsThemAreGone) {
  Make(64 << 10);
  std::atomic<bool> is_over = false;
  std::thread evicting([&] {
    while (!is_over) hook().EvictAll();
  });
  const int tensors = 400 * Rounds();
  for (int i = 0; i < tensors; ++i) {
    at::Tensor tensor = Managed(std::to_string(i % 7), at::full({3000}, i));
    for (int use = 0; use < i % 3; ++use) tensor.add_(1);
    ASSERT_EQ(tensor[0].item<float>(), static_cast<float>(i + i % 3));
  }
  is_over = true;
  evicting.join();
  hook().EvictAll();
  EXPECT_EQ(hook().stats().managed_tensors, 0);
  EXPECT_EQ(hook().stats().window_used_bytes, 0);
  EXPECT_TRUE(hook().error().ok()) << hook().error();
}

TEST_F(HookThreadsTest, AChildForkedBesideThreadsIsToldAndEnds) {
  Make(64 << 10);
  std::vector<at::Tensor> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(Managed(std::to_string(i), at::full({3000}, i)));
  }
  std::atomic<bool> is_over = false;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      while (!is_over) {
        for (const at::Tensor& each : all) each.sum();
        at::ones({10}).set_requires_grad(true);
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(InChild([&] {
      for (at::Tensor& each : all) {
        const std::string text = TextThrown([&] { each.sum(); });
        if (!absl::StrContains(text, "forked child")) return false;
        each.reset();  // its death is nobody's
      }
      return absl::IsCancelled(hook().Close(Hook::AtClose::kRestore));
    }));
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace terrace
