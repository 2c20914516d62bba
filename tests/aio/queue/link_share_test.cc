// What a queue asks of the link that it shares, and what it does with the
// answers.
#include "aio/queue/link_share.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "aio/io_paths.h"
#include "gtest/gtest.h"
#include "tests/aio/scripted_engine.h"
#include "tests/aio/test_files.h"
#include "tests/support/manual_clock.h"

namespace terrace {
namespace {

constexpr int64_t kPieceBytes = 16 << 10;

// What the test says.
struct Link {
  bool has_room = true;
  bool waits = false;
  bool is_gone = false;
  int64_t in_flight_bytes = 0;
  std::vector<LinkPiece> asked;
  std::function<void()> wake;
};

class ScriptedShare final : public LinkShare {
 public:
  explicit ScriptedShare(Link& link) : link_(link) {}
  ~ScriptedShare() override { link_.is_gone = true; }

  int64_t piece_bytes() const override { return kPieceBytes; }
  int64_t limit_bytes() const override { return 2 * kPieceBytes; }
  void OnClass(absl::Time /*now*/, IoClass /*io_class*/) override {}
  void OnAnswer(absl::Time /*now*/, int64_t /*bytes*/, bool /*is_read*/,
                bool /*has_more*/) override {}
  bool MayTake(const LinkPiece& /*piece*/) const override {
    return !link_.waits;
  }
  bool Take(const LinkPiece& piece) override {
    link_.asked.push_back(piece);
    link_.waits = !link_.has_room;
    if (link_.has_room) link_.in_flight_bytes += piece.size_bytes;
    return link_.has_room;
  }
  void Give(IoDirection /*direction*/, int64_t size_bytes) override {
    link_.in_flight_bytes -= size_bytes;
  }
  void Rest() override { link_.waits = false; }
  absl::Time NextEvent() const override { return absl::InfiniteFuture(); }

 private:
  Link& link_;
};

class LinkShareTest : public testing::Test {
 protected:
  LinkShareTest() {
    auto engine = std::make_unique<ScriptedEngine>();
    engine_ = engine.get();
    io_ = std::make_unique<IoPaths>(std::move(engine), clock_);
    const auto join = [this](std::function<void()> wake) {
      link_.wake = std::move(wake);
      return std::make_unique<ScriptedShare>(link_);
    };
    EXPECT_TRUE(io_->AddPath("/mnt/a/state", 0, {}, join).ok());
  }
  void Enqueue(uint64_t tag, int64_t pieces, IoClass io_class,
               IoDirection direction = IoDirection::kRead) {
    io_->Enqueue(
        0, {direction, io_class, buffer_.data(), 0, pieces * kPieceBytes, tag});
  }
  std::vector<Completion> Poll() {
    std::vector<Completion> ended;
    io_->Poll(&ended);
    return ended;
  }
  void EndAll() {
    while (io_->pending() > 0) {
      engine_->CompleteAll();
      Poll();
    }
  }

  VirtualClock clock_;
  AlignedBuffer buffer_{1 << 20};
  Link link_;
  ScriptedEngine* engine_ = nullptr;
  std::unique_ptr<IoPaths> io_;
};

TEST_F(LinkShareTest, EachPieceIsAskedForAndGivenBack) {
  Enqueue(1, 3, IoClass::kDemand);
  Poll();
  EXPECT_EQ(link_.asked.size(), 3u);
  EXPECT_EQ(link_.in_flight_bytes, 3 * kPieceBytes);
  engine_->Complete(0);
  Poll();
  EXPECT_EQ(link_.in_flight_bytes, 2 * kPieceBytes);
  EndAll();
  EXPECT_EQ(link_.in_flight_bytes, 0);
  EXPECT_FALSE(link_.waits);
}

// No time of its own makes it look again.
TEST_F(LinkShareTest, WhatIsRefusedIsNotIssuedUntilItIsAskedForAgain) {
  link_.has_room = false;
  Enqueue(1, 2, IoClass::kPrefetch);
  Poll();
  EXPECT_TRUE(engine_->in_flight().empty());
  EXPECT_TRUE(link_.waits);
  EXPECT_EQ(io_->NextEvent(), absl::InfiniteFuture());
  link_.has_room = true;
  Poll();
  EXPECT_EQ(engine_->in_flight().size(), 2u);
  EndAll();
}

TEST_F(LinkShareTest, WhatIsCancelledWaitsForNothing) {
  link_.has_room = false;
  Enqueue(1, 2, IoClass::kPrefetch);
  Poll();
  EXPECT_TRUE(link_.waits);
  EXPECT_TRUE(io_->Cancel(0, 1));
  Poll();
  EXPECT_FALSE(link_.waits);
  EXPECT_EQ(io_->pending(), 0);
}

// Whosever turn it is within the queue.
TEST_F(LinkShareTest, APieceGoesAsTheMostUrgentThatWaitsBehindIt) {
  link_.has_room = false;
  Enqueue(1, 24, IoClass::kWriteBack, IoDirection::kWrite);
  Poll();
  EXPECT_EQ(link_.asked.back().io_class, IoClass::kWriteBack);
  Enqueue(2, 24, IoClass::kDemand);
  link_.has_room = true;
  link_.asked.clear();
  Poll();
  int reads = 0;
  int writes = 0;
  for (size_t i = 0; reads < 24; ++i) {
    const LinkPiece& piece = link_.asked.at(i);
    ASSERT_EQ(piece.io_class, IoClass::kDemand) << i;
    ++(piece.direction == IoDirection::kRead ? reads : writes);
  }
  EXPECT_GT(writes, 0);
  EndAll();
}

// One that is more urgent is asked for at once.
TEST_F(LinkShareTest, WhatWaitsIsAskedForAsWhatItHasBecome) {
  link_.has_room = false;
  Enqueue(1, 2, IoClass::kPrefetch);
  Poll();
  io_->Promote(0, 1, IoClass::kDemand);
  Poll();
  EXPECT_EQ(link_.asked.back().io_class, IoClass::kDemand);
  link_.has_room = true;
  Poll();
  EndAll();
}

TEST_F(LinkShareTest, WhatTheEngineDoesNotTakeWaitsForTheEngineAlone) {
  engine_->set_room(0);
  Enqueue(1, 1, IoClass::kDemand);
  Enqueue(2, 1, IoClass::kDemand);
  Poll();
  link_.waits = true;  // as of one that asked before
  Poll();
  EXPECT_FALSE(link_.waits);
  engine_->set_room(10);
  Poll();
  EndAll();
  EXPECT_EQ(link_.in_flight_bytes, 0);
}

TEST_F(LinkShareTest, WhatIsAbandonedLeavesTheLink) {
  Enqueue(1, 2, IoClass::kDemand);
  Poll();
  io_->Abandon();
  EXPECT_TRUE(link_.is_gone);
}

}  // namespace
}  // namespace terrace
