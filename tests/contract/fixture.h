// The contract suite's base: every test of it runs in every world.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {

class ContractTest : public testing::TestWithParam<TestWorld> {
 protected:
  // A tensor of one page takes two: its header's and its own.
  static constexpr int64_t kPage = 4096;
  static constexpr int64_t kPlace = 2 * kPage;

  void SetUp() override {
    const absl::Status supported = TestRuntime::Supports(GetParam());
    if (!supported.ok()) GTEST_SKIP() << supported;
  }
  // A budget of that many pages' tensors.
  void Make(int places) { Make(places, {}); }
  void Make(int places, TestRuntimeOptions options) {
    options.budget_bytes = places * kPlace;
    world_ = std::make_unique<TestRuntime>(GetParam(), options);
  }
  TestRuntime& world() { return *world_; }
  Runtime& runtime() { return world_->runtime(); }
  Stats stats() { return runtime().GetStats(); }
  Time Soon() { return world_->Soon(); }
  // Long enough for a mover on a busy machine to have looked.
  Time Shortly() { return world_->Now() + absl::Milliseconds(20); }

  static std::string Message(const absl::Status& status) {
    return std::string(status.message());
  }

 private:
  std::unique_ptr<TestRuntime> world_;
};

inline std::string WorldParamName(
    const testing::TestParamInfo<TestWorld>& info) {
  return TestWorldName(info.param);
}

}  // namespace terrace
