// A path over a device in virtual time.
#pragma once

#include <memory>
#include <vector>

#include "aio/io_paths.h"
#include "gtest/gtest.h"
#include "tests/aio/model_engine.h"
#include "tests/aio/test_files.h"
#include "tests/support/manual_clock.h"

namespace terrace {

class ModelPathTest : public testing::Test {
 protected:
  // `buffer_bytes`: of what one transfer moves, at most.
  explicit ModelPathTest(int64_t buffer_bytes) : buffer_(buffer_bytes) {}

  void Make(const DeviceModel& device, const IoQueueOptions& options = {}) {
    device_ = device;
    io_ = std::make_unique<IoPaths>(
        std::make_unique<ModelEngine>(device_, clock_), clock_);
    path_ = *io_->AddPath("model", 0, options);
  }

  // What ended now; then it is the time of the next event.
  std::vector<Completion> Turn() {
    std::vector<Completion> ended;
    io_->Poll(&ended);
    for (const Completion& completion : ended) {
      EXPECT_TRUE(completion.status.ok()) << completion.status;
    }
    const absl::Time next = io_->NextEvent();
    if (next > clock_.Now() && next < absl::InfiniteFuture()) {
      clock_.JumpTo(next);
    }
    return ended;
  }

  int64_t limit() { return io_->stats(path_).in_flight_limit_bytes; }

  VirtualClock clock_;
  AlignedBuffer buffer_;
  DeviceModel device_;
  std::unique_ptr<IoPaths> io_;
  int path_ = 0;
  uint64_t tag_ = 0;
};

}  // namespace terrace
