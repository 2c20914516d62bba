// Room for groups, from residents and by pins that are asked for back.
#include "runtime/residency/byte_room.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
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

// Of two rooms' size in one part: the two last are used last, but lie apart.
TEST_F(ByteRoomTest, WhereFreeRoomIsInPartsNeighboursLeave) {
  std::vector<Tensor*> clean;
  for (int i = 0; i < kPlaces; ++i) {
    clean.push_back(&AddClean(std::to_string(i)));
  }
  for (const size_t last_used_first : {2, 5, 0, 1, 4, 7}) {
    core_.residency.residents().Touch(*clean[last_used_first]);
  }
  for (const size_t gone : {3, 6}) core_.residency.Drop(*clean[gone]);
  Tensor& large = core_.Add("large", 3 * kPage);
  RoomSeeker seeker{.number = 1};
  ByteRoom room = Round();
  EXPECT_TRUE(Find(room, &seeker, large));
  EXPECT_EQ(seeker.made_bytes, kPlace);
  EXPECT_EQ(clean[2]->at(kDramTier), nullptr);
  for (const size_t stays : {0, 1, 4, 5, 7}) {
    EXPECT_NE(clean[stays]->at(kDramTier), nullptr) << stays;
  }
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
