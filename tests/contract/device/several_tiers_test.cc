// Several tiers of a kind: two memories, and two devices above them. A queue
// names the one it works at, and contents come there from any other.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SeveralTiers : public ContractTest {
 protected:
  bool has_devices() const {
    return GetParam() == TestWorld::kHbmsVirtual ||
           GetParam() == TestWorld::kHbms;
  }
  // Each with room for so many places.
  void MakeEach(int places, TestRuntimeOptions options = {}) {
    options.node_bytes = options.hbm_bytes = places * kPlace;
    Make(places, std::move(options));
  }
  std::vector<std::string> names() const {
    if (!has_devices()) return {"dram", "dram:node1"};
    return {"dram", "dram:node1", "hbm:0", "hbm:1"};
  }
  TierStats Of(const std::string& name) {
    for (const TierStats& tier : stats().tiers) {
      if (tier.name == name) return tier;
    }
    ADD_FAILURE() << "no tier " << name;
    return {};
  }
  int64_t Moved(const std::string& from, const std::string& to) {
    int64_t bytes = 0;
    for (const LinkStats& link : stats().links) {
      if (link.from == from && link.to == to) bytes += link.bytes;
    }
    return bytes;
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, SeveralTiers,
                         testing::ValuesIn(kSeveralWorlds), WorldParamName);

TEST_P(SeveralTiers, StatsTellOfEach) {
  MakeEach(4);
  std::vector<std::string> told;
  for (const TierStats& tier : stats().tiers) told.push_back(tier.name);
  told.resize(names().size());
  if (has_devices()) {
    EXPECT_THAT(told,
                ElementsAre("dram", "dram:node1", "hbm:cuda:0", "hbm:cuda:1"));
  } else {
    EXPECT_THAT(told, ElementsAre("dram", "dram:node1"));
  }
  EXPECT_EQ(stats().host.budget_bytes, 4 * kPlace);  // the first's
}

TEST_P(SeveralTiers, AQueueNamesItsTierByPlaceByNumberOrByKind) {
  MakeEach(4);
  auto first = world().OpenQueue(kPage, 1);
  auto named = world().OpenQueue(kPage, 1, "dram:0");
  auto of_kind = world().OpenQueue(kPage, 1, "dram");
  EXPECT_EQ(Of("dram").used_bytes, 3 * kPlace);
  EXPECT_EQ(Of("dram:node1").used_bytes, 0);
  auto by_place = world().OpenQueue(kPage, 1, "dram:node1");
  auto by_number = world().OpenQueue(kPage, 2, "dram:1");
  EXPECT_EQ(Of("dram:node1").used_bytes, 3 * kPlace);
  if (!has_devices()) return;
  named.reset();  // for the staging
  of_kind.reset();
  auto device = world().OpenQueue(kPage, 1, "hbm:cuda:1");
  EXPECT_EQ(Of("hbm:cuda:1").used_bytes, kPlace);
  EXPECT_EQ(Of("hbm:cuda:0").used_bytes, 0);
}

TEST_P(SeveralTiers, ATierThatIsNotThereIsNamedWithThoseThatAre) {
  MakeEach(4);
  for (const char* const text :
       {"dram:2", "dram:node7", "hbm:2", "nvme", "far", "Dram", "dram:", "1"}) {
    const absl::Status refused =
        runtime().OpenQueue(kPage, 1, Soon(), text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << text << ": " << refused;
    EXPECT_THAT(Message(refused),
                HasSubstr("a queue at '" + std::string(text) +
                          "': customers work at dram, dram:node1"));
  }
}

TEST_P(SeveralTiers, ContentsComeFromAnyOtherTierAndEachIsWritable) {
  MakeEach(6);
  const TensorId tensor = world().Register("a", kPage);
  uint8_t seed = 1;
  for (const std::string& from : names()) {
    for (const std::string& to : names()) {
      {
        auto there = world().OpenQueue(kPage, 1, from.c_str());
        world().Fill(*there, tensor, seed);
      }
      auto here = world().OpenQueue(kPage, 1, to.c_str());
      EXPECT_TRUE(world().Holds(*here, tensor, seed)) << from << " to " << to;
      ++seed;
    }
  }
}

TEST_P(SeveralTiers, AnOpenQueueHasItsCopyWhileAnotherReadsElsewhere) {
  MakeEach(6);
  const TensorId tensor = world().Register("a", kPage);
  std::vector<std::unique_ptr<RequestQueue>> queues;
  for (const std::string& name : names()) {
    queues.push_back(world().OpenQueue(kPage, 1, name.c_str()));
  }
  world().Fill(*queues.back(), tensor, 7);
  // Pinned on all of them at one time.
  std::vector<Pin> pins;
  for (const auto& queue : queues) {
    absl::StatusOr<Pin> pin = world().Take(*queue, tensor, Access::kRead);
    ASSERT_TRUE(pin.ok()) << pin.status();
    EXPECT_TRUE(world().Has(*pin, 7));
    pins.push_back(*std::move(pin));
  }
  std::vector<uintptr_t> addresses;
  for (const Pin& pin : pins) addresses.push_back(pin.address());
  std::sort(addresses.begin(), addresses.end());
  EXPECT_EQ(std::unique(addresses.begin(), addresses.end()), addresses.end());
  pins.clear();
  // A writer on the first makes all others stale.
  world().Fill(*queues.front(), tensor, 8);
  for (const auto& queue : queues) {
    EXPECT_TRUE(world().Holds(*queue, tensor, 8));
  }
}

TEST_P(SeveralTiers, FromOneMemoryToTheOtherNothingTouchesADisk) {
  MakeEach(4, {.prefetch = false});
  const TensorId tensor = world().Register("a", kPage);
  auto first = world().OpenQueue(kPage, 1);
  auto second = world().OpenQueue(kPage, 1, "dram:1");
  world().Fill(*first, tensor, 3);
  EXPECT_TRUE(world().Holds(*second, tensor, 3));
  EXPECT_EQ(Moved("dram", "dram:node1"), kPlace);
  world().Fill(*second, tensor, 4);
  EXPECT_TRUE(world().Holds(*first, tensor, 4));
  EXPECT_EQ(Moved("dram:node1", "dram"), kPlace);
  for (const TierStats& path : stats().paths()) {
    EXPECT_EQ(path.traffic.bytes_read, 0) << path.name;
  }
}

TEST_P(SeveralTiers, WhatOneHasNoRoomForGoesToDiskAndComesToAnother) {
  MakeEach(3);
  const std::vector<TensorId> tensors = world().RegisterMany(20, kPage);
  for (const std::string& from : names()) {
    for (const std::string& to : names()) {
      {
        auto queue = world().OpenQueue(kPage, 1, from.c_str());
        for (uint8_t i = 0; i < 20; ++i) {
          world().Fill(*queue, tensors[i], static_cast<uint8_t>(i + 100));
        }
      }
      auto queue = world().OpenQueue(kPage, 1, to.c_str());
      for (uint8_t i = 0; i < 20; ++i) {
        ASSERT_TRUE(
            world().Holds(*queue, tensors[i], static_cast<uint8_t>(i + 100)))
            << int{i} << ": " << from << " to " << to;
      }
    }
  }
}

TEST_P(SeveralTiers, EachHasABudgetOfItsOwn) {
  MakeEach(4);
  for (const std::string& name : names()) {
    const absl::Status refused =
        runtime().OpenQueue(kPage, 5, Soon(), name).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << name << refused;
    EXPECT_THAT(Message(refused),
                HasSubstr("the budget is " + std::to_string(4 * kPlace)));
  }
  auto all = world().OpenQueue(kPage, 4);
  auto other = world().OpenQueue(kPage, 4, "dram:1");
  EXPECT_EQ(runtime().OpenQueue(kPage, 1, Soon(), "dram:1").status().code(),
            absl::StatusCode::kResourceExhausted);
}

class LostOfSeveral : public SeveralTiers {};

INSTANTIATE_TEST_SUITE_P(Worlds, LostOfSeveral,
                         testing::Values(TestWorld::kHbmsVirtual,
                                         TestWorld::kHbms),
                         WorldParamName);

TEST_P(LostOfSeveral, OneDevicesFaultIsNotTheOthers) {
  MakeEach(4);
  const TensorId tensor = world().Register("a", kPage);
  {
    auto memory = world().OpenQueue(kPage, 1);
    world().Fill(*memory, tensor, 9);
  }
  world().hbm(0).faults().FailAll(IoDirection::kWrite,
                                  absl::UnavailableError("cuda:0: busy"));
  auto first = world().OpenQueue(kPage, 1, "hbm:0");
  auto second = world().OpenQueue(kPage, 1, "hbm:1");
  const absl::Status failed =
      world().Take(*first, tensor, Access::kRead).status();
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_THAT(Message(failed), HasSubstr("cuda:0: busy"));
  EXPECT_TRUE(world().Holds(*second, tensor, 9));
  world().hbm(0).faults().Clear();
  EXPECT_TRUE(world().Holds(*first, tensor, 9));
}

}  // namespace
}  // namespace terrace
