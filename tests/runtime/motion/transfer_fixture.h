// Transfers over two disks of memory; a test takes their room itself.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/test_core.h"

namespace terrace {

class TransferTest : public testing::Test {
 protected:
  // One page's tensor with its header.
  static constexpr int64_t kCopyBytes = 2 * kPage;

  explicit TransferTest(const TestMachineOptions& options = {})
      : core_(options) {}

  Reservation Room() {
    return *std::move(*core_.dram.Allocate(kCopyBytes, true));
  }
  Reservation Place(TierId tier) {
    return *std::move(*core_.resting.at(tier).Allocate(kCopyBytes, true));
  }
  void StartFill(Tensor& tensor, IoClass io_class = IoClass::kDemand) {
    core_.transfers.StartFill(tensor, Room(), io_class);
  }
  // In memory, newer than what is below.
  Tensor& AddDirty(const char* name) {
    Tensor& tensor = core_.Add(name);
    tensor.BeginOverwrite(Room());
    core_.Update(tensor);
    return tensor;
  }
  // Whole below alone.
  Tensor& AddResting(const char* name) {
    Tensor& tensor = AddDirty(name);
    core_.transfers.StartDrain(tensor, tensor.resting()->place.tier(), {});
    core_.Settle();
    TERRACE_CHECK(tensor.Fetchable());
    tensor.Drop(kDramTier);
    core_.reports.clear();
    core_.transcript.clear();
    return tensor;
  }
  // Runs what waits to be sealed or checked, and returns those events.
  template <typename Kind>
  std::vector<Kind> RunTasks() {
    core_.machine.executor.RunAll();
    std::deque<Message> messages;
    core_.inbox->Drain(&messages);
    std::vector<Kind> events;
    for (const Message& message : messages) {
      events.push_back(std::get<Kind>(std::get<Event>(message)));
    }
    return events;
  }

  TestCore core_;
  Transfers& transfers_ = core_.transfers;
  FaultPlan& faults_ = *core_.machine.faults;
};

}  // namespace terrace
