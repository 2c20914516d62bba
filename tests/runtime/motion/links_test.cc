// The edges between tiers, and the disks' transport at their ends.
#include "runtime/motion/links.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/aio/scripted_engine.h"
#include "tests/support/inline_executor.h"
#include "tests/support/manual_clock.h"
#include "tests/support/medium/tier_ids.h"
#include "tiers/memory/page_buffer.h"

namespace terrace {
namespace {

constexpr int64_t kLinkPage = 4096;

class LinksTest : public testing::Test {
 protected:
  LinksTest() {
    auto engine = std::make_unique<ScriptedEngine>();
    engine_ = engine.get();
    auto io = std::make_unique<IoPaths>(std::move(engine), clock_);
    for (const char* name : {"first", "second"}) {
      TERRACE_CHECK(io->AddPath(name, 0, {}).ok());
    }
    links_ = std::make_unique<Links>(
        std::move(io), std::make_unique<CopyTransport>(std::vector<CopyEnd>(),
                                                       tasks_, clock_, [] {}));
  }

  Move MoveOf(uint64_t tag, TierId from, TierId to) {
    Move move;
    move.tag = tag;
    move.edge = {from, to};
    move.from = {from == kDramTier ? 5 * kLinkPage : 2 * kLinkPage, kLinkPage};
    move.to = {to == kDramTier ? 5 * kLinkPage : 2 * kLinkPage, kLinkPage};
    move.data = reinterpret_cast<std::byte*>(memory_.data());
    move.timeout = absl::Seconds(1);
    return move;
  }
  std::vector<Moved> Poll() {
    std::vector<Moved> moved;
    links_->Poll(&moved);
    return moved;
  }

  VirtualClock clock_;
  PageBuffer memory_{kLinkPage};
  InlineExecutor tasks_;
  ScriptedEngine* engine_ = nullptr;
  std::unique_ptr<Links> links_;
};

TEST_F(LinksTest, AMoveUpReadsFromItsTiersPath) {
  links_->Begin(MoveOf(7, kDisk1, kDramTier));
  EXPECT_EQ(links_->pending(), 1);
  EXPECT_TRUE(Poll().empty());
  ASSERT_EQ(engine_->in_flight().size(), 1u);
  const IoRequest& request = engine_->in_flight()[0];
  EXPECT_EQ(request.file, 1);  // the second disk's
  EXPECT_EQ(request.direction, IoDirection::kRead);
  EXPECT_EQ(request.offset, 2 * kLinkPage);
  EXPECT_EQ(request.size_bytes, kLinkPage);
  EXPECT_EQ(request.data, reinterpret_cast<std::byte*>(memory_.data()));
  engine_->CompleteAll();
  const std::vector<Moved> moved = Poll();
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].tag, 7u);
  EXPECT_TRUE(moved[0].status.ok());
  EXPECT_FALSE(moved[0].late);
  EXPECT_FALSE(moved[0].released);
  EXPECT_EQ(links_->pending(), 0);
}

TEST_F(LinksTest, AMoveDownWritesToItsTiersPath) {
  links_->Begin(MoveOf(7, kDramTier, kDisk0));
  Poll();
  ASSERT_EQ(engine_->in_flight().size(), 1u);
  const IoRequest& request = engine_->in_flight()[0];
  EXPECT_EQ(request.file, 0);
  EXPECT_EQ(request.direction, IoDirection::kWrite);
  EXPECT_EQ(request.offset, 2 * kLinkPage);
  engine_->CompleteAll();
  EXPECT_EQ(Poll().size(), 1u);
  EXPECT_EQ(links_->stats(kDisk0).bytes_written, kLinkPage);
  EXPECT_EQ(links_->stats(kDisk1).bytes_written, 0);
}

TEST_F(LinksTest, WhatIsNotIssuedIsCancelled) {
  links_->Begin(MoveOf(1, kDramTier, kDisk0));
  links_->Begin(MoveOf(1, kDramTier, kDisk1));  // tags are an edge's own here
  links_->Cancel({kDramTier, kDisk1}, 1);
  links_->Cancel({kDramTier, kDisk1}, 99);  // no such move: nothing
  const std::vector<Moved> moved = Poll();
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(moved[0].status));
  EXPECT_EQ(links_->pending(), 1);
  engine_->CompleteAll();
  Poll();
}

TEST_F(LinksTest, AMoveThatIsLateEndsTwice) {
  links_->Begin(MoveOf(7, kDisk0, kDramTier));
  Poll();
  std::vector<Moved> moved;
  while (moved.empty()) {
    ASSERT_LT(links_->NextEvent(), absl::InfiniteFuture());
    clock_.JumpTo(std::max(clock_.Now(), links_->NextEvent()));
    moved = Poll();
  }
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_TRUE(moved[0].late);
  EXPECT_FALSE(moved[0].released);
  EXPECT_TRUE(absl::IsDeadlineExceeded(moved[0].status));
  EXPECT_EQ(links_->pending(), 1);
  engine_->CompleteAll();
  moved = Poll();
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].tag, 7u);
  EXPECT_FALSE(moved[0].late);
  EXPECT_TRUE(moved[0].released);
  EXPECT_EQ(links_->pending(), 0);
}

TEST_F(LinksTest, IdleTheyHaveNothingToDo) {
  Poll();
  EXPECT_EQ(links_->NextEvent(), absl::InfiniteFuture());
  EXPECT_EQ(links_->engine_info().name, "scripted");
}

using LinksDeathTest = LinksTest;

TEST_F(LinksDeathTest, NoEdgeJoinsTwoDisksOrATierWithItself) {
  EXPECT_DEATH(links_->Begin(MoveOf(1, kDisk0, kDisk1)), "internal error");
  EXPECT_DEATH(links_->Begin(MoveOf(1, kDramTier, kDramTier)),
               "internal error");
}

}  // namespace
}  // namespace terrace
