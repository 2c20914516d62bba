#include "runtime/residency/window.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_reserver.h"

namespace terrace {
namespace {

using testing::ElementsAre;

// Three slots of 8192 bytes behind the first 8192 of memory.
class WindowTest : public testing::Test {
 protected:
  FakeReserver memory_{kDramTier};
  Tensor a_{{.name = "a", .size_bytes = 4096}, TensorId{0}};
  Tensor b_{{.name = "b", .size_bytes = 100}, TensorId{1}};
  std::vector<Window*> changed_;
  Window window_{kDramTier, memory_.Give(8192, 3 * 8192), 8192, 3, &changed_};
};

TEST_F(WindowTest, ItIsSlotsOfItsRange) {
  EXPECT_EQ(window_.id(), kDramTier);
  EXPECT_EQ(window_.size_bytes(), 3 * 8192);
  EXPECT_EQ(window_.stride(), 8192);
  EXPECT_EQ(window_.slots(), 3);
  EXPECT_TRUE(window_.empty());
  EXPECT_FALSE(window_.closing());
  window_.Close();
  EXPECT_TRUE(window_.closing());
}

TEST_F(WindowTest, ASlotIsItsOwnersUntilItIsGivenBack) {
  Reservation first = window_.Take(0, a_, 8192);
  Reservation last = window_.Take(2, b_, 4196);
  EXPECT_EQ(first.extent(), (Extent{8192, 8192}));
  EXPECT_EQ(last.extent(), (Extent{3 * 8192, 4196}));
  EXPECT_EQ(last.from(), &window_);
  EXPECT_EQ(window_.owner(0), &a_);
  EXPECT_EQ(window_.owner(2), &b_);
  EXPECT_EQ(window_.SlotOf(last.extent()), 2);
  EXPECT_FALSE(window_.taken(1));
  EXPECT_FALSE(window_.empty());
  first.Reset();
  EXPECT_FALSE(window_.taken(0));
  EXPECT_EQ(window_.owner(0), nullptr);
  last.Reset();
  EXPECT_TRUE(window_.empty());
  EXPECT_THAT(memory_.freed(), ElementsAre());  // it is the window's still
}

TEST_F(WindowTest, ALateFetchsSlotIsNobodysUntilTheDeviceLetsGo) {
  Reservation room = window_.Take(1, a_, 8192);
  window_.Disown(room.extent(), absl::DeadlineExceededError("late"));
  EXPECT_TRUE(window_.taken(1));
  EXPECT_EQ(window_.owner(1), nullptr);
  EXPECT_EQ(window_.late(1), absl::DeadlineExceededError("late"));
  EXPECT_FALSE(window_.empty());
  room.Reset();
  EXPECT_FALSE(window_.taken(1));
  EXPECT_TRUE(window_.late(1).ok());
}

TEST_F(WindowTest, ClosedItSaysOnceThatItHasChanged) {
  Reservation first = window_.Take(0, a_, 8192);
  Reservation second = window_.Take(1, b_, 8192);
  first.Reset();
  EXPECT_THAT(changed_, ElementsAre());  // open
  window_.Close();
  second.Reset();
  EXPECT_THAT(changed_, ElementsAre(&window_));
  changed_.clear();
  window_.ForgetChange();
  window_.NoteChange();
  EXPECT_THAT(changed_, ElementsAre(&window_));
}

TEST_F(WindowTest, ItsEndGivesTheRangeBack) {
  {
    const Window window(kDramTier, memory_.Give(65536, 8192), 8192, 1,
                        &changed_);
  }
  EXPECT_THAT(memory_.freed(), ElementsAre(Extent{65536, 8192}));
}

using WindowDeathTest = WindowTest;

TEST_F(WindowDeathTest, ASlotIsForOneTensorThatFits) {
  EXPECT_DEATH(window_.Take(0, a_, 8193), "internal error");
  const Reservation room = window_.Take(0, a_, 8192);
  EXPECT_DEATH(window_.Take(0, b_, 8192), "internal error");
  EXPECT_DEATH(window_.Disown({16384, 8192}, absl::OkStatus()),
               "internal error");
}

}  // namespace
}  // namespace terrace
