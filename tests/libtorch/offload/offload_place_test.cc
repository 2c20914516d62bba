// The shares of one offloaded model's memory.
#include "libtorch/offload/offload_place.h"

#include <algorithm>

#include "tests/libtorch/offload/offload_fixture.h"

namespace terrace {
namespace {

class OffloadPlaceTest : public testing::Test {
 protected:
  // Half of the parameters' bytes; `as_share`: an optimizer adds half of its.
  std::shared_ptr<OffloadPlace> Open(bool as_share = false) const {
    PlaceOptions asked;
    asked.at_least_minimum = as_share;
    asked.budget_bytes = 2 << 20;
    asked.daemon = folder_.daemon();
    if (!folder_.has_daemon()) asked.paths = {folder_.path()};
    asked.threads = 1;
    std::vector<at::Tensor> tensors;
    std::vector<std::string> names;
    std::vector<std::vector<int64_t>> modules;
    for (int64_t i = 0; i < 16; ++i) {
      tensors.push_back(at::zeros({64 << 10}));
      names.push_back(std::to_string(i));
      modules.push_back({i});
    }
    auto place = OffloadPlace::Open(tensors, names, modules, asked);
    EXPECT_TRUE(place.ok()) << place.status();
    return *std::move(place);
  }
  static std::vector<ParameterSpec> Spec(const std::string& name,
                                         int64_t count) {
    ParameterSpec spec;
    spec.name = name;
    spec.count = count;
    spec.on_device = true;
    return {spec};
  }

 private:
  OffloadFolder folder_;
};

// A gradient of 768 KiB leaves no room for the window of a second optimizer.
TEST_F(OffloadPlaceTest, WhatWasNotAddedTakesNoRoomFromTheNext) {
  const auto place = Open();
  OptimizerOptions options, expected, got;
  auto share = place->Join(Spec("a", 64 << 10), options);
  ASSERT_TRUE(share.ok()) << share.status();
  const auto second = place->Join(Spec("b", 64 << 10), expected);
  ASSERT_TRUE(second.ok()) << second.status();
  place->Leave(*second);
  const OffloadPlace::Share before = *share;
  const int64_t window = place->window_bytes();
  const absl::Status extended = place->Extend(*share, Spec("c", 192 << 10));
  ASSERT_TRUE(extended.ok()) << extended;
  EXPECT_EQ(share->largest_bytes, (768 << 10) + 4096);
  place->TakeBack(*share, before);
  EXPECT_EQ(share->largest_bytes, (256 << 10) + 4096);
  EXPECT_EQ(place->window_bytes(), window);
  const auto again = place->Join(Spec("b", 64 << 10), got);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->window_bytes, second->window_bytes);
  EXPECT_EQ(got.window_bytes, expected.window_bytes);
}

// A part of the state that is less than 32 MiB is the window, in whole chunks;
// of 96 MiB 32 are.
TEST_F(OffloadPlaceTest, AWindowIsNoMoreThanMotionTakes) {
  constexpr int64_t kMost = int64_t{32} << 20;
  for (const int64_t part : {kMost / 2, kMost * 3}) {
    const auto place = Open(/*as_share=*/true);
    OptimizerOptions options;
    const auto share = place->Join(Spec("a", part / 4), options);
    ASSERT_TRUE(share.ok()) << share.status();
    EXPECT_LE(share->window_bytes, kMost);
    EXPECT_GT(share->window_bytes, std::min(part, kMost) * 3 / 4);
  }
}

}  // namespace
}  // namespace terrace
