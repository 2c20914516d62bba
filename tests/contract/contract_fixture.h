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
    MakeOf(places * kPlace, std::move(options));
  }
  void MakeOf(int64_t budget_bytes, TestRuntimeOptions options) {
    options.budget_bytes = budget_bytes;
    world_ = std::make_unique<TestRuntime>(GetParam(), options);
  }
  TestRuntime& world() { return *world_; }
  Runtime& runtime() { return world_->runtime(); }
  Stats stats() { return runtime().GetStats(); }
  Time Soon() { return world_->Soon(); }
  // The deadline of what cannot be had. On a busy machine it may have passed
  // before the mover looks for the first time: stats() is answered in a turn
  // that serves all that was posted before it.
  Time Shortly() {
    return world_->Now() + OnThisMachine(absl::Milliseconds(20));
  }
  // What a healthy device is given beside one that never answers: more than a
  // busy machine keeps one of its threads waiting. A test with threads sits it
  // out.
  static absl::Duration HealthyTimeout() {
    return OnThisMachine(absl::Milliseconds(2500));
  }

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
