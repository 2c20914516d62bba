// Memory of a runtime that is lent for a while, against plain numbers: what
// each tensor was last written with. Whatever is lent is full of other bytes,
// so that who uses it nevertheless is found out.
#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/runtime/owner_questions.h"

namespace terrace {
namespace {

// Another job's, as it were.
class OthersPages final : public PageSource {
 public:
  explicit OthersPages(HostArena& arena) : arena_(arena) {}

  void Empty(const Extent& range) override {
    Fill(range, std::byte{0xEE});
    for (int64_t at = range.offset; at < range.end(); at += kBlockBytes) {
      EXPECT_TRUE(lent_.insert(at).second) << "lent twice: " << at;
    }
  }
  absl::Status Populate(const Extent& range) override {
    if (refuses_) return absl::ResourceExhaustedError("no memory");
    for (int64_t at = range.offset; at < range.end(); at += kBlockBytes) {
      EXPECT_EQ(lent_.erase(at), 1u) << "not lent: " << at;
      // Nobody wrote there meanwhile.
      EXPECT_EQ(arena_.bytes()[static_cast<size_t>(at)], std::byte{0xEE});
    }
    Fill(range, std::byte{0});
    return absl::OkStatus();
  }

  void SetRefuses(bool refuses) { refuses_ = refuses; }
  int64_t bytes() const {
    return static_cast<int64_t>(lent_.size()) * kBlockBytes;
  }
  // Of the lowest block; -1: nothing is lent.
  int64_t first() const { return lent_.empty() ? -1 : *lent_.begin(); }

 private:
  void Fill(const Extent& range, std::byte value) {
    std::fill_n(arena_.bytes().data() + range.offset, range.size_bytes, value);
  }

  HostArena& arena_;
  std::atomic<bool> refuses_ = false;
  std::set<int64_t> lent_;  // blocks; the mover's, and the test's between turns
};

class LentMemoryTest : public OwnerQuestions {
 protected:
  void MakeLendable(int places) {
    TestRuntimeOptions options;
    options.make_pages = [this](HostArena& arena) {
      pages_ = std::make_shared<OthersPages>(arena);
      return pages_;
    };
    Make(places, options);
  }
  std::unique_ptr<Asked> Ask(int64_t bytes,
                             absl::Duration patience = absl::Seconds(20),
                             uint64_t ticket = 7) {
    return Post(LendRequest{{}, ticket, bytes, world().Now() + patience});
  }
  Lent Lend(int64_t bytes, absl::Duration patience = absl::Seconds(20)) {
    const auto lent =
        Ask(bytes, patience)->question.Await<Lent>(ClockOf(runtime()));
    EXPECT_TRUE(lent.ok()) << lent.status();
    EXPECT_EQ(lent.ok() ? lent->bytes : 0, pages_->bytes());
    return lent.value_or(Lent());
  }
  std::vector<TensorId> Filled(RequestQueue& queue, int count) {
    const std::vector<TensorId> tensors = world().RegisterMany(count, kPage);
    for (int i = 0; i < count; ++i) {
      world().Fill(queue, tensors[static_cast<size_t>(i)],
                   static_cast<uint8_t>(i));
    }
    return tensors;
  }
  void ExpectFilled(RequestQueue& queue, const std::vector<TensorId>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(world().Holds(queue, tensors[i], static_cast<uint8_t>(i)))
          << i;
    }
  }

  std::shared_ptr<OthersPages> pages_;
};

INSTANTIATE_TEST_SUITE_P(Worlds, LentMemoryTest,
                         testing::Values(TestWorld::kVirtual,
                                         TestWorld::kMemory, TestWorld::kUring,
                                         TestWorld::kThreads,
                                         TestWorld::kHbmVirtual),
                         WorldParamName);

TEST_P(LentMemoryTest, TheLastOfItIsLentAndComesBack) {
  MakeLendable(40);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = Filled(*queue, 38);
  const Lent lent = Lend(16 * kPlace);
  EXPECT_EQ(lent.ticket, 7u);
  EXPECT_EQ(lent.bytes, 16 * kPlace);
  EXPECT_EQ(lent.promised_bytes, 0);
  EXPECT_EQ(lent.held_bytes, 0);
  EXPECT_EQ(pages_->first(), 24 * kPlace);
  EXPECT_EQ(stats().host.budget_bytes, 40 * kPlace);
  EXPECT_EQ(stats().host.reserved_bytes, 24 * kPlace);
  EXPECT_LE(stats().host.used_bytes, 24 * kPlace);
  EXPECT_LE(stats().host.peak_bytes, 40 * kPlace);
  ExpectFilled(*queue, tensors);
  EXPECT_EQ(Lend(5 * kPlace).bytes, 5 * kPlace);
  EXPECT_EQ(pages_->first(), 35 * kPlace);
  ExpectFilled(*queue, tensors);
  EXPECT_EQ(Lend(0).bytes, 0);
  ExpectFilled(*queue, tensors);
  EXPECT_EQ(stats().host.reserved_bytes, 40 * kPlace);
}

TEST_P(LentMemoryTest, PinsStay) {
  MakeLendable(20);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = Filled(*queue, 18);
  auto pin = world().Take(*queue, tensors.back(), Access::kUpdate);
  ASSERT_TRUE(pin.ok()) << pin.status();
  const Lent lent = Lend(18 * kPlace, absl::Milliseconds(100));
  EXPECT_EQ(lent.bytes, 17 * kPlace);
  EXPECT_EQ(lent.held_bytes, kPlace);
  EXPECT_TRUE(HasPattern(pin->data(), 17));
  WritePattern(pin->data(), 99);
  auto asked = Ask(18 * kPlace);
  stats();
  pin->Release();
  const auto rest = asked->question.Await<Lent>(ClockOf(runtime()));
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(rest->bytes, 18 * kPlace);
  EXPECT_TRUE(world().Holds(*queue, tensors.back(), 99));
}

TEST_P(LentMemoryTest, WhatQueuesHaveIsToldAtOnce) {
  MakeLendable(20);
  auto slots = world().OpenQueue(kPage, 4);
  auto bytes = runtime().OpenBytes(6 * kPlace);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const absl::Time begin = world().Now();
  const Lent lent = Lend(20 * kPlace, absl::Hours(1));
  EXPECT_LT(world().Now() - begin, absl::Minutes(1));
  EXPECT_EQ(lent.bytes, 10 * kPlace);
  EXPECT_EQ(lent.promised_bytes, 10 * kPlace);
  EXPECT_EQ(lent.held_bytes, 0);
}

// A pin that its holder keeps without use is asked for.
TEST_P(LentMemoryTest, IdlePinsAreAskedFor) {
  MakeLendable(10);
  auto slots = world().OpenQueue(kPage, 1);
  const std::vector<TensorId> tensors = Filled(*slots, 8);
  auto bytes = runtime().OpenBytes(kPlace);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto pushed =
      (*bytes)->Push({{tensors.back(), Access::kRead}}, {}, Soon());
  ASSERT_TRUE(pushed.ok());
  auto news = (*bytes)->Await(*pushed, Soon());
  ASSERT_TRUE(news.ok() && news->pins.has_value() && news->pins->ok());
  Pin pin = std::move((**news->pins)[0]);
  auto asked = Ask(8 * kPlace);
  const auto recalled = (*bytes)->AwaitRecalls(Soon());
  ASSERT_TRUE(recalled.ok()) << recalled.status();
  EXPECT_FALSE(recalled->empty());
  pin.Release();
  const auto lent = asked->question.Await<Lent>(ClockOf(runtime()));
  ASSERT_TRUE(lent.ok()) << lent.status();
  EXPECT_EQ(lent->bytes, 8 * kPlace);
  ExpectFilled(*slots, tensors);
}

TEST_P(LentMemoryTest, WhatCannotBeHadAgainStaysLent) {
  MakeLendable(20);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = Filled(*queue, 18);
  EXPECT_EQ(Lend(10 * kPlace).bytes, 10 * kPlace);
  pages_->SetRefuses(true);
  EXPECT_EQ(Lend(2 * kPlace).bytes, 10 * kPlace);
  ExpectFilled(*queue, tensors);
  pages_->SetRefuses(false);
  EXPECT_EQ(Lend(2 * kPlace).bytes, 2 * kPlace);
}

TEST_P(LentMemoryTest, AnotherOneTakesItsPlaceAndACloseEndsIt) {
  MakeLendable(10);
  auto queue = world().OpenQueue(kPage, 2);
  Filled(*queue, 8);
  world().faults().FailAll({.kind = FaultKind::kNever}, CallFilter::kWrites);
  Clock& clock = ClockOf(runtime());
  auto first = Ask(6 * kPlace, absl::Hours(1), 1);
  auto second = Ask(0, absl::Hours(1), 2);
  const auto told = first->question.Await<Lent>(clock);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->ticket, 1u);
  const auto none = second->question.Await<Lent>(clock);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->ticket, 2u);
  EXPECT_EQ(none->bytes, 0);
  auto third = Ask(6 * kPlace, absl::Hours(1), 3);
  stats();
  queue.reset();
  auto closed = Post(CloseRequest{{}, world().Now() + absl::Milliseconds(100)});
  const auto cancelled = third->question.Await<Lent>(clock);
  EXPECT_TRUE(absl::IsCancelled(cancelled.status())) << cancelled.status();
  world().faults().Clear();
  closed->question.AwaitStatus(clock).IgnoreError();
}

TEST_P(LentMemoryTest, OneThatCannotBeLentSaysSo) {
  Make(10);
  const auto lent = Ask(kPlace)->question.Await<Lent>(ClockOf(runtime()));
  EXPECT_TRUE(absl::IsUnimplemented(lent.status())) << lent.status();
}

// Customers of slots and of bytes go on while more and less is lent.
TEST_P(LentMemoryTest, WhateverIsUsedMeanwhileItHasItsBytes) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::minstd_rand random(seed);
    const Draw draw = DrawsOf(random);
    const int places = 16 + draw(20);
    MakeLendable(places);
    UseMeanwhile<Lent>(draw, 30, 300, [&]() -> std::unique_ptr<Asked> {
      if (draw(6) != 0) return nullptr;
      const int64_t lends = draw(places) * kPlace;
      return Ask(lends, absl::Milliseconds(draw(4)));
    });
  }
}

}  // namespace
}  // namespace terrace
