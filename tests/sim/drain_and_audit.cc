// The end of a random run: what was asked for comes, and what was written is
// there.
#include <algorithm>

#include "gtest/gtest.h"
#include "tests/sim/random_operations.h"

namespace terrace {

// All customers let go of everything at once and take what comes: all that was
// pushed becomes ready or fails, in bounded time.
void RandomOperations::Drain() {
  while (!held_.empty()) ReleaseAt(held_.size() - 1, true);
  const Time late = world_.Now() + absl::Seconds(60);
  bool waiting = true;
  for (Customer& each : customers_) {  // failed write-backs are tried again
    if (each.queue == nullptr) continue;
    if (each.step_open) each.queue->AbortStep().IgnoreError();
    EXPECT_TRUE(each.queue->BeginStep(0).ok());
    each.step_open = true;
  }
  while (waiting && !testing::Test::HasFailure()) {
    waiting = false;
    for (size_t i = 0; i < customers_.size(); ++i) {
      if (customers_[i].pushed.empty()) continue;
      waiting = true;
      Take(static_cast<int>(i), absl::Milliseconds(1));
      while (!held_.empty()) ReleaseAt(held_.size() - 1, true);
    }
    ASSERT_LT(world_.Now(), late) << "not in a minute";
  }
}

// Every tensor, one after the other, faults gone: the map's bytes, or an
// explanation.
void RandomOperations::Audit() {
  const Time late = world_.Now() + absl::Seconds(60);
  int64_t largest = 0;
  for (const Truth& truth : tensors_) {
    largest = std::max(largest, truth.size_bytes);
  }
  auto opened = world_.runtime().OpenQueue(largest, 1, late);
  ASSERT_TRUE(opened.ok()) << opened.status();
  RequestQueue& queue = **opened;
  ASSERT_TRUE(queue.BeginStep(1).ok());
  for (int i = 0; i < static_cast<int>(tensors_.size()); ++i) {
    Truth& truth = tensors_[static_cast<size_t>(i)];
    const Want want{truth.id, Access::kRead};
    ASSERT_TRUE(queue.Push({&want, 1}, 0, late).ok());
    auto ready = queue.Next(late);
    ASSERT_TRUE(ready.ok()) << ready.status();
    if (ready->pins.ok()) {
      EXPECT_TRUE(truth.written && !truth.lost);
      EXPECT_EQ(ready->pins->front().data(), absl::MakeSpan(truth.bytes))
          << "t" << i;
      ++pins_checked_;
      continue;
    }
    const absl::Status& status = ready->pins.status();
    if (!truth.written) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status) ||
                  (faulty_ && absl::IsDataLoss(status)))
          << status;
      continue;
    }
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_TRUE(truth.lost || truth.maybe_lost || faulty_) << status;
    truth.lost = true;
  }
}

}  // namespace terrace
