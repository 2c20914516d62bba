#include "runtime/mover/restoration.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/test_core.h"

namespace terrace {
namespace {

constexpr int64_t kSize = 4096;
const int64_t kRoom = ResidentBytes(kSize);
constexpr TierId kDisk = {TierKind::kDisk, 0};

class RestorationTest : public testing::Test {
 protected:
  static TensorImage At(int64_t id, uint64_t generation) {
    TensorImage image;
    image.id = {id};
    image.spec.name = absl::StrCat("t", id);
    image.spec.size_bytes = kSize;
    image.generation = generation;
    return image;
  }
  static CopyImage Copy(TierId tier, int64_t place, uint64_t generation) {
    return {tier, {place * kRoom, kRoom}, generation};
  }
  absl::Status Restore() {
    return core_.restoration.Restore({{}, core_.port->client(), image_});
  }
  uint64_t Token(uint64_t count) const {
    return TokensOf(core_.port->client()) | count;
  }
  void ExpectLost(const std::string& why) {
    const absl::Status status = Restore();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(why));
  }

  TestCore core_{{.paths = 1}};
  RuntimeImage image_;
};

TEST_F(RestorationTest, WhatRestsIsWholeThere) {
  TensorImage rests = At(3, 5);
  rests.below = Copy(kDisk, 2, 5);
  TensorImage empty = At(8, 0);
  empty.below = Copy(kDisk, 0, 0);
  image_.tensors = {rests, empty};
  image_.next_tensor = 20;
  ASSERT_EQ(Restore(), absl::OkStatus());
  const Tensor& tensor = *core_.table.Find({3});
  EXPECT_TRUE(tensor.Fetchable());
  EXPECT_EQ(tensor.generation(), 5u);
  EXPECT_EQ(tensor.resting()->place.extent().offset, 2 * kRoom);
  EXPECT_FALSE(core_.table.Find({8})->Fetchable());
  EXPECT_EQ(core_.resting.at(kDisk).usage().used_bytes, 2 * kRoom);
  EXPECT_EQ((*core_.table.Add({.name = "next", .size_bytes = 1}))->id.value,
            20);
  EXPECT_EQ(core_.table.CheckInvariants(), absl::OkStatus());
}

TEST_F(RestorationTest, WhatIsNewerInMemoryIsDirtyThere) {
  TensorImage dirty = At(0, 6);
  dirty.below = Copy(kDisk, 0, 5);
  dirty.memory = Copy(kDramTier, 3, 6);
  TensorImage clean = At(1, 2);
  clean.below = Copy(kDisk, 1, 2);
  clean.memory = Copy(kDramTier, 0, 2);
  image_.tensors = {dirty, clean};
  ASSERT_EQ(Restore(), absl::OkStatus());
  EXPECT_TRUE(core_.table.Find({0})->Dirty(kDramTier));
  EXPECT_FALSE(core_.table.Find({1})->Dirty(kDramTier));
  EXPECT_EQ(core_.residency.residents().size_bytes(), 2 * kRoom);
  EXPECT_EQ(core_.dram.usage().used_bytes, 2 * kRoom);
  EXPECT_EQ(core_.table.CheckInvariants(), absl::OkStatus());
}

TEST_F(RestorationTest, QueuesHaveTheirNumbersAndPinsTheirPlaces) {
  TensorImage pinned = At(0, 4);
  pinned.below = Copy(kDisk, 0, 4);
  pinned.memory = Copy(kDramTier, 3, 4);
  TensorImage written = At(1, 0);
  written.below = Copy(kDisk, 1, 0);
  written.memory = Copy(kDramTier, 2, 0);
  TensorImage left = At(2, 1);
  left.memory = Copy(kDramTier, 5, 1);
  image_.tensors = {pinned, written, left};
  image_.queues = {
      {.id = 7, .window = {2 * kRoom, 2 * kRoom}, .slots = 2, .step = 11},
      {.id = 9, .window_bytes = kRoom, .hold_at_most = kRoom}};
  image_.pins = {{Token(5), {0}, 7, Access::kRead},
                 {Token(6), {1}, 7, Access::kOverwrite},
                 {Token(2), {2}, 4, Access::kRead}};
  image_.next_queue = 12;
  image_.next_token = 9;
  ASSERT_EQ(Restore(), absl::OkStatus());
  const Customer& slots = *core_.customers.FindOpen(7);
  EXPECT_EQ(slots.step, std::optional<int64_t>(11));
  EXPECT_EQ(slots.held_pins, 2);
  EXPECT_TRUE(slots.window->taken(0) && slots.window->taken(1));
  EXPECT_TRUE(core_.customers.FindOpen(9)->bytes.has_value());
  EXPECT_EQ(core_.customers.FindOpen(4), nullptr) << "it was closed";
  EXPECT_EQ(core_.customers.Find(4)->held_pins, 1);
  const auto ended = core_.pins.End(Token(6), PinEnd::kPublish);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_TRUE(ended->published && ended->dirty);
  EXPECT_EQ(core_.table.Find({1})->generation(), 1u);
  EXPECT_EQ(core_.Open(100, 1).id, 12);
  EXPECT_EQ(core_.table.CheckInvariants(), absl::OkStatus());
}

// What was to be written and that nobody has; and what was on its way.
TEST_F(RestorationTest, UndefinedCopiesOfNobodyGo) {
  TensorImage written = At(0, 3);
  written.below = Copy(kDisk, 0, 3);
  written.memory = Copy(kDramTier, 0, 0);
  TensorImage lost = At(1, 3);
  lost.below = Copy(kDisk, 1, 2);
  image_.tensors = {written, lost};
  ASSERT_EQ(Restore(), absl::OkStatus());
  EXPECT_EQ(core_.table.Find({0})->at(kDramTier), nullptr);
  EXPECT_TRUE(core_.table.Find({0})->Fetchable());
  EXPECT_TRUE(absl::IsDataLoss(core_.table.Find({1})->loss()));
  EXPECT_EQ(core_.dram.usage().used_bytes, 0);
}

TEST_F(RestorationTest, TwoInOnePlaceAreDataLoss) {
  image_.tensors = {At(0, 1), At(1, 1)};
  for (TensorImage& each : image_.tensors) each.below = Copy(kDisk, 1, 1);
  ExpectLost("its place below is another's");
}

TEST_F(RestorationTest, TwoInOneMemoryAreDataLoss) {
  image_.tensors = {At(0, 1), At(1, 1)};
  for (TensorImage& each : image_.tensors) each.memory = Copy(kDramTier, 1, 1);
  ExpectLost("its memory is another's");
}

TEST_F(RestorationTest, AWindowInAnothersIsDataLoss) {
  image_.queues = {{.id = 0, .window = {0, 2 * kRoom}, .slots = 2},
                   {.id = 1, .window = {kRoom, 2 * kRoom}, .slots = 2}};
  ExpectLost("its window is not free");
}

TEST_F(RestorationTest, ATensorTwiceIsDataLoss) {
  image_.tensors = {At(0, 0), At(0, 0)};
  ExpectLost("there are two of it");
}

TEST_F(RestorationTest, PlacesThatAreNoneAreDataLoss) {
  const std::vector<CopyImage> places = {
      {{TierKind::kDisk, 3}, {0, kRoom}, 1},
      {kDisk, {-kRoom, kRoom}, 1},
      {kDisk, {INT64_MAX - kRoom + 1, kRoom}, 1},
      {kDisk, {0, INT64_MAX}, 1},
      {kDisk, {1, kRoom}, 1},
      {kDisk, {0, 0}, 1},
      {kDisk, {0, 4096}, 1}};
  for (const CopyImage& each : places) {
    TestCore core({.paths = 1});
    TensorImage tensor = At(0, 1);
    tensor.below = each;
    RuntimeImage image;
    image.tensors = {tensor};
    const absl::Status status =
        core.restoration.Restore({{}, core.port->client(), image});
    EXPECT_TRUE(absl::IsDataLoss(status))
        << each.extent.offset << ", " << each.extent.size_bytes << ": "
        << status;
  }
}

TEST_F(RestorationTest, PinsThatExcludeEachOtherAreDataLoss) {
  TensorImage pinned = At(0, 4);
  pinned.memory = Copy(kDramTier, 0, 4);
  image_.tensors = {pinned};
  image_.pins = {{Token(1), {0}, 0, Access::kRead},
                 {Token(2), {0}, 0, Access::kUpdate}};
  ExpectLost("another excludes it");
}

TEST_F(RestorationTest, AnothersPinIsDataLoss) {
  TensorImage pinned = At(0, 4);
  pinned.memory = Copy(kDramTier, 0, 4);
  image_.tensors = {pinned};
  image_.pins = {{TokensOf(core_.port->client() + 1) | 1, {0}, 0}};
  ExpectLost("another client's");
}

TEST_F(RestorationTest, APinOfNothingIsDataLoss) {
  image_.pins = {{Token(1), {0}, 0, Access::kRead}};
  ExpectLost("its tensor is not there");
}

// The copy goes before the pin does.
TEST_F(RestorationTest, APinThatWasBeingDiscardedIsNone) {
  TensorImage other = At(1, 1);
  other.memory = Copy(kDramTier, 0, 1);
  image_.tensors = {At(0, 0), other};
  image_.pins = {{Token(1), {0}, 0, Access::kOverwrite},
                 {Token(2), {1}, 0, Access::kRead}};
  ASSERT_EQ(Restore(), absl::OkStatus());
  EXPECT_EQ(core_.pins.size(), 1u);
  EXPECT_EQ(core_.customers.Find(0)->held_pins, 1);
  EXPECT_FALSE(core_.pins.End(Token(1), PinEnd::kDiscard).ok());
}

}  // namespace
}  // namespace terrace
