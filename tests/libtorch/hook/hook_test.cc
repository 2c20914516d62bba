// What is taken over and what is not, leases, fetches ahead and the end.
#include "terrace/torch/hook.h"

#include <ATen/record_function.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST_F(HookTest, ManagedTensorsKeepValuesShapesAndVersions) {
  Make(1 << 20);
  const at::Tensor plain = at::randn({30, 40});
  at::Tensor tensor = plain.clone().set_requires_grad(true);
  const at::Tensor view = tensor.detach().t();
  const auto version = tensor._version();
  Managed("a", tensor);
  EXPECT_FALSE(IsCold(tensor));
  EXPECT_TRUE(tensor.equal(plain));
  EXPECT_EQ(hook().EvictAll(), 1);
  EXPECT_TRUE(IsCold(tensor));
  EXPECT_TRUE(IsCold(view));
  EXPECT_EQ(tensor.sizes(), at::IntArrayRef({30, 40}));
  EXPECT_TRUE(tensor.requires_grad());
  EXPECT_EQ(tensor._version(), version);
  EXPECT_TRUE(IsCold(tensor));
  EXPECT_TRUE(view.equal(plain.t()));
  EXPECT_FALSE(IsCold(tensor));
  const HookStats stats = hook().stats();
  EXPECT_EQ(stats.managed_tensors, 1);
  EXPECT_EQ(stats.managed_bytes, 4800);
  EXPECT_EQ(stats.fetches, 1);
}

TEST_F(HookTest, OneStorageIsManagedOnce) {
  Make(1 << 20);
  const at::Tensor tensor = at::randn({8, 8});
  ASSERT_TRUE(hook()
                  .Manage({{"a", tensor},
                           {"b", tensor.select(0, 1)},
                           {"empty", at::empty({0})}})
                  .ok());
  ASSERT_TRUE(hook().Manage({{"c", tensor.t()}}).ok());
  hook().EvictAll();
  ASSERT_TRUE(hook().Manage({{"d", tensor}}).ok());
  EXPECT_EQ(hook().stats().managed_tensors, 1);
  EXPECT_TRUE(IsCold(tensor));
}

TEST_F(HookTest, MemoryOfOthersAndLazyCopiesAreTakenOver) {
  Make(1 << 20);
  std::vector<float> memory(100, 2);
  const at::Tensor blob = Managed("blob", at::from_blob(memory.data(), {100}));
  memory.assign(100, 3);  // not its bytes any more
  EXPECT_EQ(blob.sum().item<float>(), 200);
  const at::Tensor original = at::randn({50});
  const at::Tensor lazy = Managed("lazy", at::_lazy_clone(original));
  hook().EvictAll();
  EXPECT_TRUE(lazy.equal(original));
  EXPECT_FALSE(IsCold(original));
}

TEST_F(HookTest, WhatCannotBeManagedIsNamed) {
  Make(64 << 10);
  const auto refused = [&](const at::Tensor& tensor) {
    const absl::Status status = hook().Manage({{"x", tensor}});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refused(at::Tensor()), "tensor 'x' is undefined");
  EXPECT_THAT(refused(at::empty({4}, at::device(at::kMeta))),
              HasSubstr("is on meta; only CPU"));
  EXPECT_THAT(refused(at::eye(3).to_sparse()), HasSubstr("is not dense"));
  EXPECT_THAT(refused(at::randn({16, 1024})), HasSubstr("has 64 KiB, and"));
  EXPECT_EQ(hook().stats().managed_tensors, 0);
  EXPECT_EQ(tensors_below(), 0);
}

TEST_F(HookTest, AfterAnErrorNoneIsManaged) {
  Make(1 << 20);
  const at::Tensor first = at::ones({100});
  const absl::Status twice =
      hook().Manage({{"same", first}, {"same", at::ones({100})}});
  EXPECT_TRUE(absl::IsAlreadyExists(twice)) << twice;
  EXPECT_EQ(hook().stats().managed_tensors, 0);
  EXPECT_EQ(first.sum().item<float>(), 100);
  EXPECT_EQ(tensors_below(), 0);
  EXPECT_TRUE(hook().Manage({{"same", first}}).ok());
}

TEST_F(HookTest, AnotherHooksTensorsAreRefused) {
  Make(1 << 20, 1 << 20);
  const at::Tensor tensor = Managed("a", at::ones({100}));
  auto other = Hook::Create(world().runtime(), {.window_bytes = 1 << 20});
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition((*other)->Manage({{"b", tensor}})));
  // Tensors of both meet in one operation.
  const at::Tensor theirs = at::ones({100});
  ASSERT_TRUE((*other)->Manage({{"c", theirs}}).ok());
  hook().EvictAll();
  (*other)->EvictAll();
  EXPECT_EQ((tensor + theirs).sum().item<float>(), 200);
}

TEST_F(HookTest, AWindowThatIsNotSaidIsThreeQuartersOfTheBudget) {
  Make(1 << 20);
  EndHook();
  auto made = Hook::Create(world().runtime(), {});
  ASSERT_TRUE(made.ok()) << made.status();
  Hook& hook = **made;
  // A tenth of the budget each.
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(at::full({100 << 8}, i));
    const absl::Status managed =
        hook.Manage({{std::to_string(i), tensors.back()}});
    ASSERT_TRUE(managed.ok()) << managed;
  }
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < 20; ++i) {
      const at::Tensor& tensor = tensors[static_cast<size_t>(i)];
      EXPECT_EQ(tensor.max().item<float>(), static_cast<float>(i));
    }
  }
  const HookStats stats = hook.stats();
  EXPECT_LE(stats.window_peak_bytes, 3 << 18);
  EXPECT_GT(stats.window_peak_bytes, 1 << 19);
  EXPECT_EQ(stats.over_budget_bytes, 0);
}

TEST_F(HookTest, OptionsThatCannotBeAreRefused) {
  Make(1 << 20);
  Runtime& runtime = world().runtime();
  EXPECT_THAT(
      std::string(
          Hook::Create(runtime, {.window_bytes = -1}).status().message()),
      HasSubstr("a window of -1 bytes"));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Hook::Create(runtime, {.window_bytes = 2 << 20}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Hook::Create(runtime,
                   {.window_bytes = 1 << 20, .patience = absl::ZeroDuration()})
          .status()));
}

TEST_F(HookTest, ALeaseKeepsBytesAndMarksWrites) {
  Make(64 << 10);
  const at::Tensor tensor = Cold("a", {100});
  const at::Tensor expected = tensor.clone();
  hook().EvictAll();
  {
    auto lease = hook().MakeLease(tensor.view({10, 10}), Hook::Access::kWrite);
    ASSERT_TRUE(lease.ok()) << lease.status();
    ASSERT_EQ(lease->data().size(), 400u);
    EXPECT_EQ(hook().EvictAll(), 0);
    EXPECT_FALSE(IsCold(tensor));
    reinterpret_cast<float*>(lease->data().data())[7] = 5;
    // A lease held refuses the end.
    const absl::Status closed = hook().Close(Hook::AtClose::kRestore);
    EXPECT_TRUE(absl::IsFailedPrecondition(closed));
    EXPECT_THAT(std::string(closed.message()), HasSubstr("'a'"));
    Lease moved = *std::move(lease);
    EXPECT_EQ(moved.data().size(), 400u);
    moved.End();
    EXPECT_TRUE(moved.data().empty());
  }
  EvictFromMemory();
  expected[7] = 5;
  EXPECT_TRUE(tensor.equal(expected));
  EXPECT_TRUE(absl::IsInvalidArgument(
      hook().MakeLease(expected, Hook::Access::kRead).status()));
}

TEST_F(HookTest, WhatWasWaitedForIsToldByTensor) {
  Make(64 << 10);
  const at::Tensor tensor = Cold("a", {100});
  const at::Tensor other = Managed("b", at::ones({100}));
  EXPECT_TRUE(hook().blocked().empty());
  tensor.sum();
  other.sum();  // was there
  std::vector<BlockedOn> blocked = hook().blocked();
  ASSERT_EQ(blocked.size(), 1u);
  EXPECT_EQ(blocked[0].tensor, "a");
  EXPECT_GT(blocked[0].duration, absl::ZeroDuration());
  EXPECT_EQ(blocked[0].duration, hook().stats().blocked);
  EXPECT_LE(hook().stats().blocked_on_room, hook().stats().blocked);
  EvictFromMemory();
  EXPECT_TRUE(hook().MakeLease(other, Hook::Access::kRead).ok());
  blocked = hook().blocked();
  ASSERT_EQ(blocked.size(), 2u);
  EXPECT_GE(blocked[0].duration, blocked[1].duration);
  EXPECT_EQ(blocked[0].duration + blocked[1].duration, hook().stats().blocked);
}

TEST_F(HookTest, ALeaseOfNothingHasNothingUntilItIsGivenOne) {
  Lease lease;
  EXPECT_TRUE(lease.data().empty());
  lease.End();
  Make(64 << 10);
  const at::Tensor tensor = Cold("a", {100});
  auto made = hook().MakeLease(tensor, Hook::Access::kRead);
  ASSERT_TRUE(made.ok()) << made.status();
  lease = *std::move(made);
  EXPECT_EQ(lease.data().size(), 400u);
  EXPECT_EQ(hook().EvictAll(), 0);
  lease = Lease();
  EXPECT_EQ(hook().EvictAll(), 1);
}

// It lies in memory, so that nothing is read.
TEST_F(HookTest, APrefetchOfWhatIsInMemoryChangesNothing) {
  Make(1 << 20);
  const at::Tensor a = Cold("a", {100, 100});
  const at::Tensor unmanaged = at::ones({3});
  hook().Prefetch({a, unmanaged, at::Tensor()});
  EXPECT_TRUE(IsCold(a));  // installed when it is needed
  EXPECT_EQ(a.numel(), 10'000);
  EXPECT_NE(a.abs().sum().item<float>(), 0);
  EXPECT_EQ(hook().stats().fetches_ahead, 0);
  EXPECT_EQ(hook().stats().fetches, 1);
}

TEST_F(HookTest, ClosedTensorsAreInOrdinaryMemory) {
  Make(64 << 10);
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> expected;
  for (int i = 0; i < 8; ++i) {
    expected.push_back(at::randn({5000}));
    tensors.push_back(
        Managed("t" + std::to_string(i), expected.back().clone()));
  }
  ASSERT_TRUE(hook().Close(Hook::AtClose::kRestore).ok());
  EXPECT_TRUE(hook().Close(Hook::AtClose::kRefuse).ok());  // nothing more
  EXPECT_EQ(tensors_below(), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(hook().Manage({{"t", tensors[0]}})));
  EndHook();
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(tensors[i].equal(expected[i]));
    tensors[i].resize_({6000});
  }
}

TEST_F(HookTest, RefusedTensorsThrowAndMayOutliveTheRuntime) {
  Make(64 << 10);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 8; ++i) {
    tensors.push_back(Managed("t" + std::to_string(i), at::randn({5000})));
  }
  ASSERT_TRUE(hook().Close(Hook::AtClose::kRefuse).ok());
  EndHook();
  world().Destroy();
  for (const at::Tensor& tensor : tensors) {
    EXPECT_TRUE(IsCold(tensor));
    EXPECT_THAT(TextThrown([&] { (tensor + 1).sum(); }),
                StartsWith("terrace: 't"));
    EXPECT_THAT(TextThrown([&] { tensor.clone(); }),
                HasSubstr("the hook is closed"));
  }
}

TEST_F(HookTest, WithoutManagedTensorsNothingIsSeen) {
  Make(64 << 10);
  EXPECT_FALSE(at::hasGlobalCallbacks());
  for (int i = 0; i < 3; ++i) {
    const at::Tensor passing = Managed("p", at::ones({10}));
    hook().EvictAll();
    EXPECT_TRUE(at::hasGlobalCallbacks());
    EXPECT_EQ(passing.sum().item<float>(), 10);
  }
  EXPECT_FALSE(at::hasGlobalCallbacks());
  const at::Tensor tensor = Managed("a", at::ones({10}));
  EXPECT_TRUE(at::hasGlobalCallbacks());
  EndHook();
  EXPECT_FALSE(at::hasGlobalCallbacks());
  EXPECT_EQ(tensor.sum().item<float>(), 10);
}

}  // namespace
}  // namespace terrace
