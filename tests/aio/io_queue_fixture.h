// An IoPaths of one path over an engine that does what the test says, in
// virtual time.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "aio/io_paths.h"
#include "gtest/gtest.h"
#include "tests/aio/scripted_engine.h"
#include "tests/aio/test_files.h"
#include "tests/support/manual_clock.h"

namespace terrace {

inline constexpr int64_t kBlock = 4096;
inline constexpr int64_t kPiece = 4 * kBlock;
inline constexpr int64_t kLimit = 2 * kPiece;

class IoQueueTest : public testing::Test {
 protected:
  IoQueueTest() : buffer_(1 << 20) {
    auto engine = std::make_unique<ScriptedEngine>();
    engine_ = engine.get();
    io_ = std::make_unique<IoPaths>(std::move(engine), clock_);
    IoQueueOptions options;
    options.in_flight_bytes = kLimit;
    options.piece_bytes = kPiece;
    options.adapts = false;
    path_ = *io_->AddPath("/mnt/a/state", 0, options);
  }

  void Enqueue(IoDirection direction, int64_t offset, int64_t size_bytes,
               uint64_t tag, IoClass io_class = IoClass::kDemand,
               absl::Duration timeout = absl::InfiniteDuration()) {
    io_->Enqueue(path_, {direction, io_class, buffer_.data(), offset,
                         size_bytes, tag, timeout});
  }
  void Read(int64_t size_bytes, uint64_t tag = 1) {
    Enqueue(IoDirection::kRead, kBlock, size_bytes, tag);
  }
  void Write(int64_t size_bytes, uint64_t tag = 1) {
    Enqueue(IoDirection::kWrite, kBlock, size_bytes, tag);
  }

  // What ended since the last call.
  std::vector<Completion> Poll() {
    std::vector<Completion> completions;
    io_->Poll(&completions);
    return completions;
  }

  // Lets time pass, with a look whenever one is due; what ended.
  std::vector<Completion> Watch(absl::Duration time) {
    const absl::Time end = clock_.Now() + time;
    std::vector<Completion> ended = Poll();
    while (clock_.Now() < end) {
      clock_.JumpTo(std::min(end, io_->NextEvent()));
      for (Completion& completion : Poll()) ended.push_back(completion);
    }
    return ended;
  }

  // One transfer of one block; each time it is in flight it gets `result`;
  // time jumps from event to event. Its only completion.
  Completion EndOf(IoDirection direction, int64_t result) {
    Enqueue(direction, kBlock, kBlock, 1);
    std::vector<Completion> all = Poll();
    for (int i = 0; i < 100 && io_->pending() > 0; ++i) {
      while (!engine_->in_flight().empty()) engine_->Complete(0, result);
      for (const Completion& completion : Poll()) all.push_back(completion);
      const absl::Time next = io_->NextEvent();
      if (next > clock_.Now() && next < absl::InfiniteFuture()) {
        clock_.JumpTo(next);
      }
      for (const Completion& completion : Poll()) all.push_back(completion);
    }
    EXPECT_EQ(all.size(), 1u);
    EXPECT_EQ(io_->NextEvent(), absl::InfiniteFuture());
    return all.empty() ? Completion{} : all[0];
  }

  std::vector<int64_t> InFlightOffsets() const {
    std::vector<int64_t> offsets;
    for (const IoRequest& request : engine_->in_flight()) {
      offsets.push_back(request.offset);
    }
    return offsets;
  }

  VirtualClock clock_;
  AlignedBuffer buffer_;
  ScriptedEngine* engine_ = nullptr;
  std::unique_ptr<IoPaths> io_;
  int path_ = 0;
};

}  // namespace terrace
