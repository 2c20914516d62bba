// Room for groups, from residents and by pins that are asked for back.
#include "runtime/residency/byte_room.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/test_core.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class ByteRoomTest : public testing::Test {
 protected:
  static constexpr int64_t kPlace = 2 * kPage;
  static constexpr int kPlaces = 8;

  ByteRoomTest() {
    core_.planner.Merge();
    core_.residency.residents().Rank(core_.planner);
    core_.byte_pins.Open(kQueue, core_.planner, /*by_next_use=*/true);
  }
  // Written, whole below and in memory.
  Tensor& AddClean(const std::string& name) {
    Tensor& tensor = core_.Add(name);
    core_.Rest(tensor);
    core_.Fetch(tensor);
    return tensor;
  }
  // With an idle pin of a queue of bytes.
  Tensor& AddPinned(const std::string& name) {
    Tensor& tensor = AddClean(name);
    tensor.Hold(kDramTier, Access::kRead);
    tokens_.push_back(
        core_.pins.Grant(tensor, kDramTier, kQueue, Access::kRead));
    core_.byte_pins.OnGranted(tokens_.back(), tensor, kDramTier, kQueue);
    return tensor;
  }
  // The pins that were asked for since, by place in the order of AddPinned.
  std::vector<size_t> Asked() {
    std::vector<size_t> asked;
    for (const RecalledPin& each : core_.byte_pins.TakeAsked()) {
      asked.push_back(static_cast<size_t>(absl::c_find(tokens_, each.token) -
                                          tokens_.begin()));
    }
    return asked;
  }
  bool Find(ByteRoom& room, RoomSeeker* seeker, Tensor& tensor) {
    Tensor* const tensors[] = {&tensor};
    ByteRoom::Rooms rooms;
    std::vector<Tensor*> leaving;
    const bool found = room.Find(tensors, seeker, &rooms, &leaving);
    for (size_t i = 0; i < rooms.size(); ++i) {
      if (found) core_.residency.GiveBack(tensor, std::move(rooms[i]));
    }
    return found;
  }
  ByteRoom Round() { return ByteRoom(core_.residency, core_.byte_pins); }

  static constexpr int64_t kQueue = 1;
  TestCore core_{{.budget_bytes = kPlaces * kPlace}};
  std::vector<uint64_t> tokens_;
};

TEST_F(ByteRoomTest, EachSeekerAsksForWhatItLacksAndNoMore) {
  Tensor& small = core_.Add("small");
  Tensor& large = core_.Add("large", 5 * kPage);
  for (int i = 0; i < kPlaces; ++i) AddPinned(std::to_string(i));
  RoomSeeker first{.number = 1};
  RoomSeeker second{.number = 2};
  for (int turn = 0; turn < 3; ++turn) {
    ByteRoom room = Round();
    EXPECT_FALSE(Find(room, &first, small));
    EXPECT_FALSE(Find(room, &second, large));
    if (turn == 0) {
      EXPECT_THAT(Asked(), ElementsAre(0, 1, 2, 3));
    } else {
      EXPECT_THAT(Asked(), IsEmpty());
    }
  }
  EXPECT_EQ(core_.byte_pins.coming_bytes_for(1), kPlace);
  EXPECT_EQ(core_.byte_pins.coming_bytes_for(2), 3 * kPlace);
  core_.byte_pins.Keep(tokens_[2]);  // the next one at once
  ByteRoom room = Round();
  EXPECT_FALSE(Find(room, &first, small));
  EXPECT_FALSE(Find(room, &second, large));
  EXPECT_THAT(Asked(), ElementsAre(4));
}

TEST_F(ByteRoomTest, AskedForPinsOfAnotherAreNotCountedOn) {
  Tensor& small = core_.Add("small");
  for (int i = 0; i < kPlaces; ++i) AddPinned(std::to_string(i));
  for (uint64_t number = 1; number <= 3; ++number) {
    RoomSeeker seeker{.number = number};
    ByteRoom room = Round();
    EXPECT_FALSE(Find(room, &seeker, small));
    EXPECT_THAT(Asked(), ElementsAre(number - 1));
  }
}

TEST_F(ByteRoomTest, WhatWasMadeForOneIsNotForALaterOne) {
  Tensor& small = core_.Add("small");
  Tensor& large = core_.Add("large", 3 * kPage);
  AddClean("clean");
  for (int i = 1; i < kPlaces; ++i) AddPinned(std::to_string(i));
  RoomSeeker first{.number = 1};
  RoomSeeker second{.number = 2};
  RoomSeeker with_pins{.number = 3, .uses_pins = true};
  ByteRoom room = Round();
  EXPECT_FALSE(Find(room, &first, large));
  EXPECT_EQ(first.made_bytes, kPlace);
  room.KeepFor(first);
  EXPECT_FALSE(Find(room, &second, small));
  EXPECT_EQ(second.made_bytes, 0);
  EXPECT_TRUE(Find(room, &with_pins, small));
}

// Free are places 3 and 6; of the others 2 and 5 are used last, and then 0.
class RoomInPartsTest : public ByteRoomTest {
 protected:
  void Fill(const std::function<Tensor&(const std::string&)>& add) {
    for (int i = 0; i < kPlaces; ++i) {
      const std::string name = std::to_string(i);
      here_.push_back(IsFree(i) ? &AddClean(name) : &add(name));
    }
    for (const size_t each : {2, 5, 0, 1, 4, 7}) {
      core_.residency.residents().Touch(*here_[each]);
    }
    for (const size_t gone : {3, 6}) core_.residency.Drop(*here_[gone]);
  }
  void FillClean() {
    Fill([this](const std::string& name) -> Tensor& { return AddClean(name); });
  }
  // Of what finds no room. What must be written back is in `leaving_`.
  bool Seek(ByteRoom& room, RoomSeeker* seeker, Tensor& tensor) {
    Tensor* const wants[] = {&tensor};
    ByteRoom::Rooms rooms;
    return room.Find(wants, seeker, &rooms, &leaving_);
  }
  void StartLeaving() {
    std::vector<QueueError> errors;
    core_.write_back.StartLeaving(&leaving_, &errors);
  }
  // Those that were there and are not any more.
  std::vector<int> Gone() const {
    std::vector<int> gone;
    for (int i = 0; i < kPlaces; ++i) {
      const Tensor& tensor = *here_[static_cast<size_t>(i)];
      if (!IsFree(i) && tensor.at(kDramTier) == nullptr) gone.push_back(i);
    }
    return gone;
  }
  static bool IsFree(int i) { return i == 3 || i == 6; }

  std::vector<Tensor*> here_;
  std::vector<Tensor*> leaving_;
  Tensor& large_ = core_.Add("large", 3 * kPage);  // two places
};

TEST_F(RoomInPartsTest, WhatIsUsedLastBesideAFreePlaceLeavesAlone) {
  FillClean();
  RoomSeeker seeker{.number = 1};
  ByteRoom room = Round();
  EXPECT_TRUE(Find(room, &seeker, large_));
  EXPECT_THAT(Gone(), ElementsAre(2));
}

TEST_F(RoomInPartsTest, WhatIsBeingWrittenForItIsWaitedFor) {
  FillClean();
  core_.Update(*here_[2]);
  RoomSeeker seeker{.number = 1};
  ByteRoom first = Round();
  EXPECT_FALSE(Seek(first, &seeker, large_));
  EXPECT_THAT(leaving_, ElementsAre(here_[2]));
  StartLeaving();
  ByteRoom second = Round();
  EXPECT_FALSE(Seek(second, &seeker, large_));
  EXPECT_THAT(leaving_, IsEmpty());
  core_.Settle();
  core_.residency.Drop(*here_[2]);
  ByteRoom third = Round();
  EXPECT_TRUE(Find(third, &seeker, large_));
  EXPECT_THAT(Gone(), ElementsAre(2));
}

// Who comes after it in a turn has a run of its own.
TEST_F(RoomInPartsTest, WhatIsBeingWrittenForOneIsNotForTheNext) {
  FillClean();
  for (const size_t each : {2, 5}) core_.Update(*here_[each]);
  Tensor& other = core_.Add("other", 3 * kPage);
  RoomSeeker seeker{.number = 1, .uses_pins = true};
  RoomSeeker next{.number = 2, .uses_pins = true};
  ByteRoom room = Round();
  EXPECT_FALSE(Seek(room, &seeker, large_));
  EXPECT_THAT(leaving_, ElementsAre(here_[2]));
  EXPECT_FALSE(Seek(room, &next, other));
  EXPECT_THAT(leaving_, ElementsAre(here_[2], here_[5]));
  StartLeaving();
  core_.Settle();
}

TEST_F(RoomInPartsTest, APinBesideAFreePlaceIsAskedForOnceAndThenAnother) {
  Fill([this](const std::string& name) -> Tensor& { return AddPinned(name); });
  RoomSeeker seeker{.number = 1};
  for (int turn = 0; turn < 2; ++turn) {
    ByteRoom room = Round();
    EXPECT_FALSE(Find(room, &seeker, large_));
    if (turn == 0) {
      EXPECT_THAT(Asked(), ElementsAre(2));
    } else {
      EXPECT_THAT(Asked(), IsEmpty());
    }
  }
  core_.byte_pins.Keep(tokens_[2]);
  ByteRoom room = Round();
  EXPECT_FALSE(Find(room, &seeker, large_));
  EXPECT_THAT(Asked(), ElementsAre(4));  // by tensor 5, as two places are free
}

// Nothing that may leave lies beside a free place.
TEST_F(RoomInPartsTest, WhereNoneWouldHelpNothingLeaves) {
  FillClean();
  for (const size_t held : {0, 2, 4, 5, 7}) {
    here_[held]->Hold(kDramTier, Access::kRead);
  }
  RoomSeeker seeker{.number = 1};
  ByteRoom room = Round();
  EXPECT_FALSE(Find(room, &seeker, large_));
  EXPECT_THAT(Gone(), IsEmpty());
}

// What another seeker's own tensors are is looked at again: they may leave for
// those that come after it.
TEST_F(ByteRoomTest, WhatStaysForOneSeekerMayLeaveForTheNext) {
  Tensor& own = AddClean("own");
  Tensor& large = core_.Add("large", (2 * kPlaces - 1) * kPage);
  Tensor& small = core_.Add("small");
  for (int i = 1; i < kPlaces; ++i) AddPinned(std::to_string(i));
  RoomSeeker first{.number = 1};
  RoomSeeker second{.number = 2};
  Tensor* const wants[] = {&own, &large};
  ByteRoom::Rooms rooms;
  std::vector<Tensor*> leaving;
  ByteRoom room = Round();
  core_.working.Keep(own);
  EXPECT_FALSE(room.Find(wants, &first, &rooms, &leaving));
  core_.working.EndKeep();
  EXPECT_TRUE(Find(room, &second, small));
  EXPECT_EQ(own.at(kDramTier), nullptr);
}

// Residents that cannot go anywhere, and seekers of one turn.
double SecondsOf(int seekers) {
  constexpr int kResidents = 3000;
  TestCore core({.budget_bytes = kResidents * 2 * kPage});
  core.planner.Merge();
  core.residency.residents().Rank(core.planner);
  for (int i = 0; i < kResidents; ++i) {
    core.Write(core.Add(std::to_string(i), kPage, kNoTier));
  }
  Tensor* const wants[] = {&core.Add("wanted", kPage, kNoTier)};
  double least = 1;
  for (int run = 0; run < 5; ++run) {
    const std::clock_t begun = std::clock();
    ByteRoom room(core.residency, core.byte_pins);
    for (int i = 0; i < seekers; ++i) {
      RoomSeeker seeker{.number = static_cast<uint64_t>(i + 1)};
      ByteRoom::Rooms rooms;
      std::vector<Tensor*> leaving;
      EXPECT_FALSE(room.Find(wants, &seeker, &rooms, &leaving));
    }
    least = std::min(
        least, static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC);
  }
  return least;
}

TEST(ByteRoomCost, ThatNoneMayLeaveIsFoundOutOnce) {
  const double one = SecondsOf(1);
  const double many = SecondsOf(1000);
  std::printf("1 seeker: %.6f s, 1000: %.6f s\n", one, many);
  EXPECT_LT(many, 100 * one + 0.01);
}

}  // namespace
}  // namespace terrace
