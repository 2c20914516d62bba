// What must hold of a tensor and of all of them, broken by calls that no part
// makes. What a transition's own check makes impossible is tensor_test.cc's.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/tensor/tensor_life.h"
#include "runtime/tensor/tensor_table.h"
#include "tests/runtime/tensor/tensor_fixture.h"
#include "tests/support/fake_reserver.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class TensorInvariantsTest : public TensorTest {
 protected:
  void ExpectBroken(const std::string& rule) {
    const absl::Status status = CheckInvariants(tensor_);
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("tensor 'weights': " + rule));
  }
};

TEST_F(TensorInvariantsTest, TheyHoldThroughoutALife) {
  EXPECT_TRUE(CheckInvariants(tensor_).ok());
  Rest();
  EXPECT_TRUE(CheckInvariants(tensor_).ok());
  Fetch();
  Update();
  EXPECT_TRUE(CheckInvariants(tensor_).ok());
  tensor_.BeginDrain(1);
  EXPECT_TRUE(CheckInvariants(tensor_).ok());
  tensor_.BeginMove(true, 2);
  EXPECT_TRUE(CheckInvariants(tensor_).ok());
  tensor_.EndDrain(/*late=*/true);
  EXPECT_TRUE(CheckInvariants(tensor_).ok());
}

TEST_F(TensorInvariantsTest, AWritePinIsAlone) {
  Rest();
  Fetch();
  tensor_.Hold(kDramTier, Access::kUpdate);
  tensor_.Unhold(kDramTier, Access::kRead);  // of another's
  ExpectBroken("a write pin is not alone");
}

TEST_F(TensorInvariantsTest, ADirtyCopyIsNewerThanWhatIsBelow) {
  Rest();
  Fetch();
  Update();
  tensor_.BeginDrain(1);
  tensor_.BeginMove(true, 2);
  tensor_.Drained({}, 3);  // there is no such generation
  ExpectBroken("a dirty copy above a current one");
}

TEST_F(TensorInvariantsTest, NoCopyIsNewerThanTheNewest) {
  tensor_.GivePlace(disk_.Give(0));
  Overwrite();
  tensor_.BeginDrain(1);
  tensor_.BeginMove(true, 2);
  tensor_.Drained({}, 2);
  tensor_.Drop(kDramTier);
  ExpectBroken("newer than its newest");
}

TEST_F(TensorInvariantsTest, ThereIsOneCopyATier) {
  Rest();
  Fetch();
  tensor_.BeginOverwrite(other_.Give(0));  // on a resting tier
  ExpectBroken("more copies than tiers");
}

TEST_F(TensorInvariantsTest, EveryCopyHasRoom) {
  tensor_.GivePlace(Reservation());
  ExpectBroken("a copy without room");
}

class TableInvariantsTest : public testing::Test {
 protected:
  void ExpectBroken(const std::string& rule) {
    const absl::Status status = table_.CheckInvariants();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensor 'a': " + rule))
        << status;
  }

  FakeReserver memory_{kDramTier};
  TensorTable table_;
  Tensor& tensor_ = **table_.Add({.name = "a", .size_bytes = 1});
};

TEST_F(TableInvariantsTest, ThoseOfEachTensorAreItsOwn) {
  EXPECT_TRUE(table_.CheckInvariants().ok());
  tensor_.GivePlace(Reservation());
  ExpectBroken("a copy without room");
}

TEST_F(TableInvariantsTest, WhatWasWrittenIsSomewhereOrLost) {
  table_.Admit(tensor_);
  tensor_.BeginOverwrite(memory_.Give(0));
  tensor_.Hold(kDramTier, Access::kOverwrite);
  tensor_.Publish(kDramTier);
  tensor_.Unhold(kDramTier, Access::kOverwrite);
  EXPECT_TRUE(table_.CheckInvariants().ok());
  tensor_.Drop(kDramTier);
  ExpectBroken("written once, has no whole copy and no DataLoss");
  tensor_.Lose(absl::DataLossError("dropped"));
  EXPECT_TRUE(table_.CheckInvariants().ok());
}

TEST_F(TableInvariantsTest, WhatEndedIsNotPinned) {
  table_.Admit(tensor_);
  tensor_.BeginOverwrite(memory_.Give(0));
  tensor_.Hold(kDramTier, Access::kRead);
  EXPECT_TRUE(table_.CheckInvariants().ok());
  table_.Retire(tensor_);
  ExpectBroken("pinned after its end");
}

}  // namespace
}  // namespace terrace
