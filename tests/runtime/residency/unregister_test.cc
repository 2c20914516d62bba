// Ends of tensors, which wait for the tensor's own transfers.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/residency/registrar.h"
#include "runtime/tensor/wanted_tensors.h"
#include "tests/support/test_core.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class UnregisterTest : public testing::Test {
 protected:
  UnregisterTest() { core_.Rest(tensor_); }

  std::shared_ptr<Question> Unregister(TensorId id, uint64_t after = 0) {
    auto asked = std::make_shared<Question>(*core_.port);
    core_.registrar.Unregister({asked->id(), id}, after);
    Serve();
    return asked;
  }
  void Serve(uint64_t processed = 0) {
    core_.registrar.ServeEnds(wanted_, processed);
  }
  absl::Status Get(const std::shared_ptr<Question>& asked) {
    return asked->AwaitStatus(core_.machine.clock);
  }
  bool IsGone() const {
    bool is_there = false;
    core_.table.ForEach([&](const Tensor& tensor) {
      is_there = is_there || tensor.id == TensorId{0};
    });
    return !is_there;
  }
  bool IsFound() const { return core_.table.Find(TensorId{0}) != nullptr; }
  // Its name is free again.
  bool HasFreedName() {
    const auto added = core_.table.Add({.name = "a", .size_bytes = 1});
    if (added.ok()) core_.table.TakeBack(**added);
    return added.ok();
  }

  TestCore core_;
  WantedTensors wanted_;
  Tensor& tensor_ = core_.Add("a");
};

TEST_F(UnregisterTest, ATensorThatRestsIsGoneAtOnceWithItsPlace) {
  const auto reply = Unregister(tensor_.id);
  EXPECT_TRUE(Get(reply).ok());
  EXPECT_TRUE(IsGone());
  EXPECT_TRUE(HasFreedName());
  EXPECT_EQ(core_.resting.at(kDisk0).usage().used_bytes, 0);
}

TEST_F(UnregisterTest, ACopyInMemoryGoesWithItDirtyOrNot) {
  core_.Fetch(tensor_);
  core_.Update(tensor_);
  EXPECT_TRUE(Get(Unregister(tensor_.id)).ok());
  EXPECT_TRUE(IsGone());
  EXPECT_EQ(core_.dram.usage().used_bytes, 0);
  EXPECT_EQ(core_.residency.residents().size_bytes(), 0);
}

TEST_F(UnregisterTest, NoSuchTensorIsTheCallersFault) {
  const absl::Status status = Get(Unregister(TensorId{9}));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("9"));
}

TEST_F(UnregisterTest, WhatIsPinnedOrWantedIsRefused) {
  core_.Fetch(tensor_);
  const Want want[] = {{tensor_.id, Access::kRead}};
  wanted_.Add(want);
  absl::Status status = Get(Unregister(tensor_.id));
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("'a' is wanted"));
  wanted_.Remove(want);
  tensor_.Hold(kDramTier, Access::kRead);
  const uint64_t token = core_.pins.Grant(tensor_, kDramTier, 0, Access::kRead);
  status = Get(Unregister(tensor_.id));
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("'a' is pinned"));
  EXPECT_TRUE(IsFound());
  ASSERT_TRUE(core_.pins.End(token, PinEnd::kUnchanged).ok());
  EXPECT_TRUE(Get(Unregister(tensor_.id)).ok());
}

TEST_F(UnregisterTest, PinsThatNobodyTookAreWaitedFor) {
  core_.Fetch(tensor_);
  tensor_.Hold(kDramTier, Access::kRead);
  const uint64_t token = core_.pins.Grant(tensor_, kDramTier, 0, Access::kRead);
  const auto reply = Unregister(tensor_.id, /*after=*/5);
  Serve(/*processed=*/4);
  EXPECT_TRUE(IsFound());
  ASSERT_TRUE(core_.pins.End(token, PinEnd::kUnchanged).ok());
  Serve(/*processed=*/5);
  EXPECT_TRUE(Get(reply).ok());
  EXPECT_TRUE(IsGone());
}

TEST_F(UnregisterTest, AHoldIsWaitedFor) {
  core_.Fetch(tensor_);
  tensor_.Hold(kDramTier, Access::kRead);
  const auto reply = Unregister(tensor_.id);
  EXPECT_TRUE(IsFound());
  tensor_.Unhold(kDramTier, Access::kRead);
  Serve();
  EXPECT_TRUE(Get(reply).ok());
}

TEST_F(UnregisterTest, AFetchIsCancelledAndWaitedFor) {
  core_.transfers.StartFill(tensor_, core_.residency.FindRoom(tensor_),
                            IoClass::kPrefetch);
  const auto reply = Unregister(tensor_.id);
  EXPECT_FALSE(IsFound());
  EXPECT_FALSE(IsGone());
  const std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(arrivals[0].status));
  core_.residency.OnGone(tensor_, nullptr, absl::OkStatus());
  Serve();
  EXPECT_TRUE(Get(reply).ok());
  EXPECT_TRUE(IsGone());
}

TEST_F(UnregisterTest, AWriteBackIsCancelledAndWaitedFor) {
  core_.Fetch(tensor_);
  core_.Update(tensor_);
  core_.transfers.StartDrain(tensor_, kDisk0, {});
  core_.Hear();  // it moves
  const auto reply = Unregister(tensor_.id);
  EXPECT_FALSE(IsGone());
  EXPECT_TRUE(absl::IsCancelled(core_.Settle().at(0).status));
  Serve();
  EXPECT_TRUE(Get(reply).ok());
  EXPECT_TRUE(IsGone());
}

TEST_F(UnregisterTest, ALateFetchKeepsThePlaceButNotTheNameOrTheCaller) {
  core_.machine.faults->FailCall(1, {.kind = FaultKind::kNever},
                                 CallFilter::kReads);
  core_.transfers.StartFill(tensor_, core_.residency.FindRoom(tensor_),
                            IoClass::kDemand);
  for (const Arrival& each : core_.SettleFor(absl::Seconds(3))) {
    core_.residency.OnGone(tensor_, each.late_room, each.status);
  }
  EXPECT_TRUE(Get(Unregister(tensor_.id)).ok());
  EXPECT_FALSE(IsFound());
  EXPECT_TRUE(HasFreedName());
  EXPECT_FALSE(IsGone());
  EXPECT_EQ(core_.resting.at(kDisk0).usage().used_bytes, 2 * kPage);
  core_.machine.faults->Release();
  core_.Settle();
  Serve();
  EXPECT_TRUE(IsGone());
  EXPECT_EQ(core_.resting.at(kDisk0).usage().used_bytes, 0);
}

TEST_F(UnregisterTest, WhoWaitsIsToldWhyItIsRefused) {
  core_.Fetch(tensor_);
  tensor_.Hold(kDramTier, Access::kRead);
  const auto reply = Unregister(tensor_.id);
  core_.registrar.Refuse(absl::CancelledError("closing"));
  EXPECT_EQ(Get(reply), absl::CancelledError("closing"));
  tensor_.Unhold(kDramTier, Access::kRead);
}

}  // namespace
}  // namespace terrace
