// A world whose disk can be made to fail.
#pragma once

#include <vector>

#include "tests/contract/contract_fixture.h"

namespace terrace {

class FailingDisk : public ContractTest {
 protected:
  static constexpr Fault kGone = {.kind = FaultKind::kError, .error = ENXIO};

  // `count` tensors, written and no longer in the window: a group that takes
  // all of its slots came after them.
  std::vector<TensorId> OnDisk(RequestQueue& queue, int count, int slots = 2) {
    const std::vector<TensorId> tensors =
        world().RegisterMany(count + slots, kPage);
    for (int i = 0; i < count; ++i) {
      world().Fill(queue, tensors[static_cast<size_t>(i)], i);
    }
    std::vector<Want> fillers;
    for (int i = count; i < count + slots; ++i) {
      fillers.push_back({tensors[static_cast<size_t>(i)], Access::kOverwrite});
    }
    EXPECT_TRUE(queue.Push(fillers, 0, Soon()).ok());
    EXPECT_TRUE(queue.Next(Soon())->pins.ok());
    EXPECT_TRUE(world().WaitUntil([&] {
      // A short deadline may have passed on a slow machine: again.
      if (stats().paths()[0].degraded) {
        EXPECT_TRUE(queue.BeginStep(0).ok() && queue.AbortStep().ok());
      }
      return stats().bytes_written() >= (count + slots) * kPlace;
    }));
    return tensors;
  }
  // A deadline that a busy machine's disk keeps, if nothing holds it back.
  TestRuntimeOptions ShortTimeout() {
    TestRuntimeOptions options;
    options.io_timeout = HealthyTimeout();
    return options;
  }
  // Ends all faults; the mover sees what they held back.
  void Mend() {
    world().faults().Clear();
    runtime().Prefetch({});
  }
};

}  // namespace terrace
