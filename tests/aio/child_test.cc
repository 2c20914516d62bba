// Children that are made while rings are tried, made and ended: they keep none
// of them, nor what a ring is woken and ended by.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

#include "aio/engine.h"
#include "aio/uring_probe.h"
#include "tests/support/expected_failure.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

// Of this process.
int CountOf(const std::string& kind) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string what =
        std::filesystem::read_symlink(entry, error).string();
    count += what.find(kind) != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(ChildOfAnEngine, KeepsNothingOfItAtAnyMoment) {
  ExpectedFailure expected(
      "rings that are tried, and what wakes one, are kept");
  if (!ProbeUring().available) GTEST_SKIP() << "no rings here";
  const int pipes = CountOf("pipe:");
  std::atomic<bool> stop = false;
  std::thread makes_rings([&] {
    while (!stop) {
      static_cast<void>(ProbeUring());
      static_cast<void>(MakeEngine(EngineKind::kUring));
    }
  });
  for (int round = 0; round < 50 && !testing::Test::HasFailure(); ++round) {
    EXPECT_TRUE(InChild([&] {
      return CountOf("[io_uring]") == 0 && CountOf("[eventfd]") == 0 &&
             CountOf("pipe:") == pipes;
    })) << round;
  }
  stop = true;
  makes_rings.join();
}

}  // namespace
}  // namespace terrace
