// The death of tensors, many threads, and forked children.
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/hook/managed_storages.h"
#include "tests/libtorch/hook/hook_fixture.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

TEST_F(HookTest, ATensorThatDiesGivesBackItsPlace) {
  Make(64 << 10);
  for (const bool cold : {true, false}) {
    SCOPED_TRACE(cold);
    at::Tensor tensor = Managed("a", at::ones({1000}));
    if (cold) hook().EvictAll();
    EXPECT_EQ(tensors_below(), 1);
    at::Tensor view = tensor.view({10, 100});
    tensor.reset();
    EXPECT_EQ(tensors_below(), 1);
    view.reset();
    EXPECT_EQ(tensors_below(), 0);
    EXPECT_EQ(hook().stats().managed_tensors, 0);
    EXPECT_EQ(hook().stats().window_used_bytes, 0);
  }
}

TEST_F(HookTest, ATensorThatDiesInItsLastOperationGivesBackItsPlace) {
  Make(64 << 10);
  at::Tensor tensor = Managed("a", at::ones({1000}));
  hook().EvictAll();
  tensor.set_data(tensor + 1);
  EXPECT_EQ(tensor.sum().item<float>(), 2000);
  EXPECT_EQ(hook().stats().managed_tensors, 0);
  EXPECT_EQ(tensors_below(), 0);
}

TEST_F(HookTest, AnAddressUsedAgainIsAnotherStorage) {
  Make(64 << 10);
  for (int i = 0; i < 200; ++i) {
    {
      const at::Tensor managed =
          Managed("m" + std::to_string(i), at::full({500}, i));
      hook().EvictAll();
    }
    const at::Tensor plain = at::full({500}, 7);
    EXPECT_EQ(plain.sum().item<float>(), 3500);
    EXPECT_EQ(hook().EvictAll(), 0);
  }
}

TEST_F(HookTest, ThreadsComputeWhileAnotherEvicts) {
  Make(128 << 10);
  const at::Tensor shared = Managed("shared", at::ones({60, 60}));
  std::atomic<int> users = 2;
  std::vector<std::thread> threads;
  for (int user = 0; user < 2; ++user) {
    threads.emplace_back([&, user] {
      const std::string name = std::to_string(user);
      at::Tensor plain = at::ones({60, 60});
      const at::Tensor first = Managed(name + " 0", plain.clone());
      const at::Tensor second = Managed(name + " 1", plain.clone());
      for (int i = 0; i < 60; ++i) {
        first.add_(shared);
        second.copy_(first + shared);
        plain.add_(1);
        ASSERT_TRUE(first.equal(plain));
        ASSERT_TRUE(second.equal(plain + 1));
      }
      --users;
    });
  }
  while (users > 0) hook().EvictAll();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(hook().stats().failures, 0);
  EXPECT_TRUE(shared.equal(at::ones({60, 60})));
}

// Two graphs at a time, each of which reads the same weight in its backward.
TEST_F(HookTest, BackwardsOfTwoThreadsShareAWeight) {
  Make(64 << 10);
  const at::Tensor weight = Managed("w", at::randn({50, 50}));
  const at::Tensor plain = weight.clone();
  const auto gradient = [](const at::Tensor& with) {
    at::Tensor input = at::ones({3, 50}).set_requires_grad(true);
    at::Tensor out = input;
    for (int i = 0; i < 5; ++i) out = out.mm(with).tanh();
    torch::autograd::backward({out.sum()}, {});
    return input.grad();
  };
  const at::Tensor expected = gradient(plain);
  std::atomic<int> users = 2;
  std::vector<std::thread> threads;
  for (int user = 0; user < 2; ++user) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        EXPECT_TRUE(gradient(weight).equal(expected));
      }
      --users;
    });
  }
  while (users > 0) hook().EvictAll();
  for (std::thread& thread : threads) thread.join();
}

TEST_F(HookTest, AForkedChildThrowsAndTheParentGoesOn) {
  Make(64 << 10);
  const at::Tensor here = Managed("here", at::ones({1000}));
  const at::Tensor away = Managed("away", at::ones({1000}));
  hook().EvictAll();
  EXPECT_EQ(here.sum().item<float>(), 1000);
  EXPECT_TRUE(InChild([&] {
    const std::string first = TextThrown([&] { here.sum(); });
    const std::string second = TextThrown([&] { away.sum(); });
    return first.starts_with("terrace: 'here'") &&
           second.starts_with("terrace: 'away'") &&
           first.find("forked child") != std::string::npos &&
           absl::IsCancelled(hook().Close(Hook::AtClose::kRestore));
  }));
  EXPECT_EQ((here + away).sum().item<float>(), 2000);
}

TEST_F(HookTest, WhatMemoryHasNoRoomForStaysAwayAtClose) {
  Make(64 << 10);
  EndHook();
  int64_t available = INT64_MAX;
  const auto storages = std::make_shared<ManagedStorages>(
      world().runtime(),
      ByteWindowOptions{.window_bytes = 64 << 10,
                        .available_bytes = [&] { return available; }});
  const at::Tensor large = at::ones({8000});
  const at::Tensor small = at::ones({1000});
  ASSERT_TRUE(storages->Add({{"large", large}, {"small", small}}).ok());
  available = OrdinaryMemory::kSpareBytes + 8000;
  const absl::Status closed = storages->Close(/*restore=*/true);
  EXPECT_TRUE(absl::IsResourceExhausted(closed)) << closed;
  EXPECT_THAT(std::string(closed.message()), testing::HasSubstr("'large'"));
  EXPECT_EQ(small.sum().item<float>(), 1000);
  EXPECT_THAT(TextThrown([&] { large.sum(); }),
              testing::StartsWith("terrace: 'large'"));
}

}  // namespace
}  // namespace terrace
