#include "terrace/torch/placement.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

class PlacementTest : public testing::Test {
 protected:
  ~PlacementTest() override {
    if (PlacementAllocator::installed()) {
      EXPECT_TRUE(PlacementAllocator::Uninstall().ok());
    }
  }
  static bool IsIn(const PlacementArena& arena, const at::Tensor& tensor) {
    return arena.Contains(tensor.data_ptr());
  }
};

TEST_F(PlacementTest, TensorsAreInTheArenaOfTheInnermostScope) {
  // Installed late: tensors exist.
  at::Tensor before = at::ones({1000});
  ASSERT_TRUE(PlacementAllocator::Install().ok());
  EXPECT_TRUE(PlacementAllocator::Install().ok());
  auto arena = *PlacementArena::Create(1 << 20);
  auto inner = *PlacementArena::Create(1 << 20);
  const at::Tensor outside = at::ones({1000});
  at::Tensor in_arena;
  at::Tensor in_inner;
  at::Tensor again;
  at::Tensor elsewhere;
  {
    const PlacementScope scope(arena);
    in_arena = at::ones({1000});
    {
      const PlacementScope inside(inner);
      in_inner = in_arena + 1;
    }
    again = in_inner * 2;
    std::thread([&] { elsewhere = at::ones({1000}); }).join();
  }
  const at::Tensor after = again + 1;
  EXPECT_TRUE(IsIn(arena, in_arena));
  EXPECT_TRUE(IsIn(inner, in_inner));
  EXPECT_TRUE(IsIn(arena, again));
  for (const at::Tensor& tensor : {before, outside, elsewhere, after}) {
    EXPECT_FALSE(IsIn(arena, tensor) || IsIn(inner, tensor));
  }
  EXPECT_EQ(after.sum().item<float>(), 5000);
  EXPECT_EQ(arena.used_bytes(), 2 * 4096);
  in_arena.reset();
  EXPECT_EQ(arena.used_bytes(), 4096);
  again.reset();
  EXPECT_EQ(arena.used_bytes(), 0);
}

TEST_F(PlacementTest, WhatHasNoRoomIsMadeOutside) {
  ASSERT_TRUE(PlacementAllocator::Install().ok());
  auto arena = *PlacementArena::Create(16 << 10);
  const PlacementScope scope(arena);
  const at::Tensor large = at::ones({10'000});
  const at::Tensor small = at::ones({10});
  EXPECT_FALSE(IsIn(arena, large));
  EXPECT_TRUE(IsIn(arena, small));
  EXPECT_EQ(at::empty({0}).numel(), 0);
}

TEST_F(PlacementTest, TensorsOutliveArenaScopeAndAllocator) {
  at::Tensor tensor;
  {
    ASSERT_TRUE(PlacementAllocator::Install().ok());
    std::optional<PlacementArena> arena = *PlacementArena::Create(1 << 20);
    const PlacementScope scope(*arena);
    tensor = at::ones({1000});
    EXPECT_TRUE(IsIn(*arena, tensor));
    arena.reset();
    tensor.add_(1);
    ASSERT_TRUE(PlacementAllocator::Uninstall().ok());
  }
  EXPECT_EQ(tensor.sum().item<float>(), 2000);
  // It has the allocator that it was made by.
  tensor.resize_({2000});
  EXPECT_EQ(tensor.slice(0, 0, 1000).sum().item<float>(), 2000);
}

TEST_F(PlacementTest, RawMemoryGoesWhereItCameFrom) {
  ASSERT_TRUE(PlacementAllocator::Install().ok());
  auto arena = *PlacementArena::Create(1 << 20);
  c10::Allocator& allocator = *c10::GetAllocator(at::kCPU);
  void* const outside = allocator.raw_allocate(100);
  void* in_arena = nullptr;
  {
    const PlacementScope scope(arena);
    in_arena = allocator.raw_allocate(100);
    EXPECT_TRUE(arena.Contains(in_arena));
    allocator.raw_deallocate(outside);
  }
  EXPECT_EQ(arena.used_bytes(), 4096);
  allocator.raw_deallocate(in_arena);
  EXPECT_EQ(arena.used_bytes(), 0);
}

TEST_F(PlacementTest, UninstalledOneIsNotThereAndComesBack) {
  c10::Allocator* const own = c10::GetAllocator(at::kCPU);
  EXPECT_TRUE(absl::IsFailedPrecondition(PlacementAllocator::Uninstall()));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(PlacementAllocator::Install().ok());
    EXPECT_NE(c10::GetAllocator(at::kCPU), own);
    ASSERT_TRUE(PlacementAllocator::Uninstall().ok());
    EXPECT_EQ(c10::GetAllocator(at::kCPU), own);
  }
  auto arena = *PlacementArena::Create(1 << 20);
  const PlacementScope scope(arena);
  EXPECT_FALSE(IsIn(arena, at::ones({10})));
}

TEST_F(PlacementTest, ThreadsThatInstallItAtOnceHaveTheSameOneBelow) {
  c10::Allocator* const own = c10::GetAllocator(at::kCPU);
  for (int i = 0; i < 200; ++i) {
    std::atomic<int> ready = 0;
    std::vector<std::thread> threads;
    for (int each = 0; each < 3; ++each) {
      threads.emplace_back([&] {
        for (++ready; ready < 3;) {
        }
        EXPECT_TRUE(PlacementAllocator::Install().ok());
      });
    }
    for (std::thread& each : threads) each.join();
    EXPECT_EQ(at::ones({10}).sum().item<float>(), 10);
    ASSERT_TRUE(PlacementAllocator::Uninstall().ok());
    ASSERT_EQ(c10::GetAllocator(at::kCPU), own);
  }
}

// Last: LibTorch never lowers the priority again.
TEST_F(PlacementTest, ZAHigherPriorityRefusesAndIsTold) {
  c10::Allocator* const own = c10::GetAllocator(at::kCPU);
  c10::SetAllocator(at::kCPU, own, 7);
  EXPECT_TRUE(absl::IsFailedPrecondition(PlacementAllocator::Install()));
  EXPECT_FALSE(PlacementAllocator::installed());
  EXPECT_EQ(c10::GetAllocator(at::kCPU), own);
  EXPECT_EQ(at::ones({10}).sum().item<float>(), 10);
}

}  // namespace
}  // namespace terrace
