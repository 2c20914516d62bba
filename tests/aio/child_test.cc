// Children that are made while rings are tried, made and ended: they keep none
// of them, nor what a ring is woken and ended by.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "aio/engine.h"
#include "aio/uring_probe.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

int Pipes() {
  int count = 0;
  for (const std::string& each : OpenDescriptors()) {
    count += each.find(" pipe:") != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(ChildOfAnEngine, KeepsNothingOfItAtAnyMoment) {
  if (!ProbeUring().available) GTEST_SKIP() << "no rings here";
  const int pipes = Pipes();
  std::atomic<bool> stop = false;
  std::thread makes_rings([&] {
    while (!stop) {
      static_cast<void>(ProbeUring());
      static_cast<void>(MakeEngine(EngineKind::kUring));
    }
  });
  for (int round = 0; round < 50 && !testing::Test::HasFailure(); ++round) {
    EXPECT_TRUE(InChild([&] {
      return CountOpen("anon_inode:[io_uring]") == 0 &&
             CountOpen("anon_inode:[eventfd]") == 0 && Pipes() == pipes;
    })) << round;
  }
  stop = true;
  makes_rings.join();
}

}  // namespace
}  // namespace terrace
