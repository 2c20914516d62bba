// A hook that takes over what updates go on with waits for them, or leaves it.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/torch/hook.h"
#include "tests/libtorch/late_fixture.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class LateTakeoverTest : public testing::Test {
 protected:
  LateTakeoverTest()
      : world_(TestWorld::kMemory,
               {.budget_bytes = 8 << 20, .path_bytes = 64 << 20}) {
    auto made = Hook::Create(world_.runtime(), {.window_bytes = 4 << 20});
    EXPECT_TRUE(made.ok()) << made.status();
    hook_ = *std::move(made);
  }

  static std::vector<NamedTensor> Named(const Trained& trained) {
    std::vector<NamedTensor> named;
    for (const at::Tensor& each : trained.parameters()) {
      named.push_back({absl::StrCat(named.size()), each});
    }
    return named;
  }
  Hook& hook() { return *hook_; }

 private:
  TestRuntime world_;
  std::unique_ptr<Hook> hook_;
};

TEST_F(LateTakeoverTest, WhatAHookTakesOverWasUpdatedBefore) {
  Trained blocking(false), late(true);
  ASSERT_TRUE(blocking.Step(1).ok());
  Gate gate(late.runtime());
  ASSERT_TRUE(late.Step(1).ok());
  std::atomic<int> taken = 0;
  std::thread parameters([&] {
    const absl::Status managed = hook().Manage(Named(late));
    EXPECT_TRUE(managed.ok()) << managed;
    ++taken;
  });
  std::thread gradient([&] {
    const absl::Status managed =
        hook().ManageGradient({"first", late.parameters().front()});
    EXPECT_TRUE(managed.ok()) << managed;
    ++taken;
  });
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(taken, 0);
  gate.Open();
  parameters.join();
  gradient.join();
  EXPECT_TRUE(hook().Manages(late.parameters().back()));
  EXPECT_TRUE(hook().Manages(late.parameters().front().grad()));
  EXPECT_TRUE(late.optimizer().Flush().ok());
  late.ExpectParametersOf(blocking);
  EXPECT_TRUE(hook().Close(Hook::AtClose::kRestore).ok());
  late.ExpectParametersOf(blocking);
}

TEST_F(LateTakeoverTest, WhatCouldNotBeUpdatedStaysWithItsUpdate) {
  Trained blocking(false), late(true);
  ASSERT_TRUE(blocking.Step(1).ok());
  late.Fail(1);
  ASSERT_TRUE(late.Step(1).ok());
  const absl::Status managed = hook().Manage(Named(late));
  EXPECT_TRUE(absl::IsFailedPrecondition(managed)) << managed;
  EXPECT_THAT(std::string(managed.message()), HasSubstr("EIO"));
  EXPECT_EQ(hook().stats().managed_tensors, 0);
  late.Mend();
  EXPECT_FALSE(late.optimizer().Flush().ok());  // tells
  ASSERT_TRUE(late.optimizer().Flush().ok());
  late.ExpectParametersOf(blocking);
}

}  // namespace
}  // namespace terrace
