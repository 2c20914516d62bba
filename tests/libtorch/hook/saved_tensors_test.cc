// Tensors that are managed while an operation saves them.
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// What LibTorch does around an operation.
class Operation {
 public:
  Operation() : record_(at::RecordScope::FUNCTION) { record_.before("op"); }

 private:
  at::RecordFunction record_;
};

class SavedTensorsTest : public HookTest {
 protected:
  static constexpr int64_t kElements = 1024 - 16;  // with its header 8 KiB

  void MakeSaving(int64_t window_bytes = 64 << 10, int64_t most = 32 << 10) {
    Make(window_bytes, /*spare_bytes=*/32 << 10);
    hook().BeginSaving(most);
  }
  bool Save(const at::Tensor& tensor) {
    const Operation operation;
    const absl::StatusOr<bool> saved = hook().ManageSaved(tensor);
    EXPECT_TRUE(saved.ok()) << saved.status();
    return saved.ok() && *saved;
  }
  static at::Tensor Made(int64_t number) {
    return at::full({kElements}, static_cast<double>(number), at::kFloat);
  }
};

TEST_F(SavedTensorsTest, OneStaysUntilItsOperationHasEnded) {
  MakeSaving();
  const at::Tensor tensor = Made(3);
  {
    const Operation outer;
    {
      const Operation inner;
      ASSERT_TRUE(*hook().ManageSaved(tensor));
      EXPECT_EQ(hook().EvictAll(), 0);
      EXPECT_FALSE(IsCold(tensor));
      { const Operation innermost; }
      EXPECT_EQ(hook().EvictAll(), 0);
    }
    EXPECT_EQ(hook().EvictAll(), 1);  // the outer one asks for what it takes
  }
  EXPECT_TRUE(IsCold(tensor));
  EXPECT_TRUE(tensor.eq(3).all().item<bool>());
  EXPECT_EQ(hook().stats().saved.evicted_bytes, kElements * 4);
  EXPECT_EQ(hook().stats().saved.fetched_bytes, kElements * 4);
}

// A program may train two models over one Runtime, each with its own hook.
TEST_F(SavedTensorsTest, TwoHooksOverOneRuntimeSaveInOneStep) {
  MakeSaving(/*window_bytes=*/16 << 10, /*most=*/16 << 10);
  auto made = Hook::Create(world().runtime(), {.window_bytes = 16 << 10});
  ASSERT_TRUE(made.ok()) << made.status();
  Hook& other = **made;
  other.BeginSaving(16 << 10);
  for (int step = 0; step < 3; ++step) {
    hook().BeginStep();
    other.BeginStep();
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 6; ++i) {
      tensors.push_back(Made(i));
      ASSERT_TRUE(Save(tensors.back()));
      tensors.push_back(Made(10 + i));
      const Operation operation;
      const absl::StatusOr<bool> saved = other.ManageSaved(tensors.back());
      ASSERT_TRUE(saved.ok()) << saved.status();
      EXPECT_TRUE(*saved);
    }
    for (int i = 5; i >= 0; --i) {
      const auto at = static_cast<size_t>(2 * i);
      EXPECT_TRUE(tensors[at].eq(i).all().item<bool>());
      EXPECT_TRUE(tensors[at + 1].eq(10 + i).all().item<bool>());
    }
  }
  EXPECT_TRUE(hook().error().ok()) << hook().error();
  EXPECT_TRUE(other.error().ok()) << other.error();
  EXPECT_GT(other.stats().saved.evicted_bytes, 0);
}

TEST_F(SavedTensorsTest, SeveralOfOneOperationStayTogetherBeyondTheWindow) {
  MakeSaving(/*window_bytes=*/16 << 10, /*most=*/16 << 10);
  std::vector<at::Tensor> tensors;
  {
    const Operation operation;
    for (int i = 0; i < 4; ++i) {
      tensors.push_back(Made(i));
      ASSERT_TRUE(*hook().ManageSaved(tensors.back()));
    }
    for (const at::Tensor& each : tensors) EXPECT_FALSE(IsCold(each));
    EXPECT_GT(hook().stats().over_budget_bytes, 0);
  }
  EXPECT_LE(hook().stats().window_used_bytes, 16 << 10);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(tensors[static_cast<size_t>(i)].eq(i).all().item<bool>());
  }
}

TEST_F(SavedTensorsTest, OneThatEndsGivesItsPlaceBackAtOnce) {
  MakeSaving(16 << 10);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 10; ++i) {
    tensors.push_back(Made(i));
    ASSERT_TRUE(Save(tensors.back()));
    ASSERT_FALSE(Save(tensors.back().detach()));  // once for a storage
  }
  EXPECT_EQ(tensors_below(), 10);
  EXPECT_EQ(hook().stats().managed_tensors, 10);
  EXPECT_EQ(hook().stats().saved.peak_bytes, 10 * kElements * 4);
  tensors.resize(3);
  EXPECT_EQ(tensors_below(), 3);
  tensors.clear();
  EXPECT_EQ(tensors_below(), 0);
  EXPECT_EQ(hook().stats().managed_tensors, 0);
  EXPECT_EQ(hook().stats().saved.tensors, 10);
}

TEST_F(SavedTensorsTest, WithoutATraceThoseSavedBeforeAreFetchedAhead) {
  MakeSaving();
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(Made(i));
    ASSERT_TRUE(Save(tensors.back()));
  }
  tensors.resize(8);  // they lie below, and leave room
  hook().UseSaved(tensors[7]);
  ASSERT_TRUE(world().WaitUntil(
      [&] { return world().runtime().GetStats().prefetch_reads >= 3; }));
  EXPECT_TRUE(tensors[6].eq(6).all().item<bool>());
  EXPECT_EQ(hook().stats().fetches_ahead, 1);
  EXPECT_EQ(hook().stats().fetches, 0);
}

TEST_F(SavedTensorsTest, TheNextStepKnowsThemByTheirPlacesInIt) {
  MakeSaving(/*window_bytes=*/32 << 10);
  std::vector<at::Tensor> kept;  // of the steps before: numbers are theirs
  for (int step = 0; step < 4; ++step) {
    hook().BeginStep();
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 12; ++i) {
      tensors.push_back(Made(100 * step + i));
      ASSERT_TRUE(Save(tensors.back()));
    }
    const int64_t before = hook().stats().fetches_ahead;
    for (int i = 11; i >= 0; --i) {
      const at::Tensor each = tensors.back();
      tensors.pop_back();
      EXPECT_TRUE(each.eq(100 * step + i).all().item<bool>());
      if (i == 5) kept.push_back(each);
      world().runtime().GetStats();  // by when the next one is begun
    }
    if (step >= 3) {  // the first steps are before it manages any
      EXPECT_GT(hook().stats().fetches_ahead, before) << step;
    }
  }
  hook().EvictAll();
  for (int step = 0; step < 4; ++step) {
    const at::Tensor& each = kept[static_cast<size_t>(step)];
    EXPECT_TRUE(each.eq(100 * step + 5).all().item<bool>());
  }
  EXPECT_EQ(tensors_below(), 4);
}

TEST_F(SavedTensorsTest, WhatIsNotLibTorchsOwnMemoryIsLeftAlone) {
  Make(64 << 10, 32 << 10);
  const at::Tensor before = Made(1);
  EXPECT_FALSE(Save(before));  // it has not begun
  hook().BeginSaving(16 << 10);
  std::vector<float> memory(kElements);
  EXPECT_FALSE(Save(at::from_blob(memory.data(), {kElements})));
  EXPECT_FALSE(Save(at::zeros({4096})));  // with its header more than 16 KiB
  EXPECT_FALSE(Save(at::zeros({0})));
  EXPECT_FALSE(Save(at::eye(40).to_sparse()));
  EXPECT_FALSE(Save(at::empty({1024}, at::device(at::kMeta))));
  EXPECT_FALSE(Save(Managed("managed", Made(2))));
  {
    const at::DisableRecordFunctionGuard guard;
    EXPECT_FALSE(*hook().ManageSaved(before));  // its use would not be seen
  }
  ASSERT_TRUE(Save(before));
  ASSERT_TRUE(hook().Close(Hook::AtClose::kRestore).ok());
  EXPECT_FALSE(Save(Made(3)));
  EXPECT_FALSE(IsCold(before));
  EXPECT_TRUE(before.eq(1).all().item<bool>());
}

TEST_F(SavedTensorsTest, WithoutRoomBelowItStaysAsItIs) {
  MakeSaving();
  std::vector<at::Tensor> tensors;
  absl::StatusOr<bool> saved = true;
  while (saved.ok() && tensors.size() < 20'000) {
    tensors.push_back(Made(static_cast<int64_t>(tensors.size())));
    const Operation operation;
    saved = hook().ManageSaved(tensors.back());
  }
  ASSERT_EQ(saved.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string name =
      "'activation " + std::to_string(tensors.size() - 1) + " of step 0' ";
  EXPECT_THAT(std::string(saved.status().message()), HasSubstr(name));
  EXPECT_EQ(hook().error(), saved.status());
  EXPECT_FALSE(IsCold(tensors.back()));
  EXPECT_TRUE(tensors.back()
                  .eq(static_cast<double>(tensors.size() - 1))
                  .all()
                  .item<bool>());
  tensors.erase(tensors.begin());  // its room is the next one's
  EXPECT_TRUE(Save(tensors.back()));
}

}  // namespace
}  // namespace terrace
