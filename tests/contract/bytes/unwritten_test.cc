// Groups of queues of bytes for which nothing leaves: what would cannot be
// written, and then nothing goes beyond the budget either.
#include <vector>

#include "tests/contract/bytes/byte_contract_fixture.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Places as in WhatFitsInNoPartBesideWhatWaitsGoesBeyond, with one more at the
// right that would make a part large enough, if it could be written:
//
//   | small, 3 free | in use | 4 free | unwritten |
class UnwrittenContract : public ByteQueueContract {
 protected:
  static int64_t size_of(int places) { return places * kPlace - kPage; }

  void SetUp() override {
    ByteQueueContract::SetUp();
    if (IsSkipped()) return;
    Open(12);
    const TensorId left = Written("left", size_of(4), 1);
    in_use_ = Have(Written("middle", size_of(2), 2), Access::kRead);
    const TensorId right = Written("right", size_of(4), 3);
    unwritten_ = Written("unwritten", size_of(2), 4);
    ASSERT_TRUE(runtime().Unregister(left).ok());
    ASSERT_TRUE(runtime().Unregister(right).ok());
    world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                             CallFilter::kWrites);
  }
  void ExpectRefused(uint64_t request) {
    const Awaited news = Await(request);
    ASSERT_TRUE(news.pins.has_value());
    const absl::Status& status = news.pins->status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr("'unwritten'"));
    EXPECT_THAT(Message(status), HasSubstr("ENXIO"));
  }
  uint64_t PushLarge() {
    const TensorId large = world().Register("large", size_of(5));
    return Push({{large, Access::kOverwrite}}, {in_use_.token()});
  }

  Pin in_use_;
  TensorId unwritten_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, UnwrittenContract,
                         testing::ValuesIn(kDiskWorlds), WorldParamName);

TEST_P(UnwrittenContract, AGroupThatFitsInNoPartIsToldWhatWasNotWritten) {
  ExpectRefused(PushLarge());
  in_use_.Release();
  EXPECT_TRUE(HasPattern(Have(unwritten_, Access::kRead).data(), 4));
}

// Its holder may compute, and push what ends the wait: it is asked first.
TEST_P(UnwrittenContract, WhoHasAnIdlePinIsAskedBeforeAGroupFails) {
  const TensorId small = world().Register("small", kPage);
  Pin idle = Have(small, Access::kOverwrite);
  const uint64_t request = PushLarge();
  ASSERT_THAT(Await(request).recalls, ElementsAre(idle.token()));
  EXPECT_TRUE(Waits(request));
  idle.Release();
  ExpectRefused(request);
}

TEST_P(UnwrittenContract, WhoKeepsItsPinIsWaitedFor) {
  const TensorId small = world().Register("small", kPage);
  Pin kept = Have(small, Access::kOverwrite);
  const uint64_t request = PushLarge();
  ASSERT_THAT(Await(request).recalls, ElementsAre(kept.token()));
  queue_->Keep(kept.token());
  EXPECT_TRUE(Waits(request));
  EXPECT_TRUE(queue_->BeginWaiting({kept.token()}).ok());
  ExpectRefused(request);
}

}  // namespace
}  // namespace terrace
