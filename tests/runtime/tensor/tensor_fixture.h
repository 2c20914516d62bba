// A tensor, and what its copies are reserved from: memory, tier 1 and tier 2.
#pragma once

#include "gtest/gtest.h"
#include "runtime/tensor/tensor_life.h"
#include "tests/support/fake_reserver.h"

namespace terrace {

class TensorTest : public testing::Test {
 protected:
  // A write pin that publishes what no copy had before.
  void Overwrite() {
    tensor_.BeginOverwrite(memory_.Give(0));
    tensor_.Hold(kDramTier, Access::kOverwrite);
    tensor_.Publish(kDramTier);
    tensor_.Unhold(kDramTier, Access::kOverwrite);
  }
  void Update() {
    tensor_.Hold(kDramTier, Access::kUpdate);
    tensor_.Publish(kDramTier);
    tensor_.Unhold(kDramTier, Access::kUpdate);
  }
  void WriteBack() {
    tensor_.BeginDrain(1);
    tensor_.BeginMove(/*in_place=*/true, 2);
    tensor_.Drained({}, tensor_.generation());
  }
  // Generation 1, whole on tier 1 and nowhere else.
  void Rest() {
    tensor_.GivePlace(disk_.Give(0));
    Overwrite();
    WriteBack();
    tensor_.Drop(kDramTier);
  }
  void Fetch() {
    tensor_.BeginFill(kDramTier, memory_.Give(0), 3);
    tensor_.Filled(kDramTier);
    tensor_.Checked(kDramTier);
  }

  // They outlive the tensor.
  FakeReserver memory_{kDramTier};
  FakeReserver disk_{kDisk0};
  FakeReserver other_{kDisk1};
  Tensor tensor_{{.name = "weights", .size_bytes = 4096}, TensorId{7}};
};
using TensorDeathTest = TensorTest;

}  // namespace terrace
