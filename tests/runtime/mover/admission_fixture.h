// Queues over the mover's parts: a test pushes, admits, and hears arrivals.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "tests/support/test_core.h"

namespace terrace {

class AdmissionTest : public testing::Test {
 protected:
  explicit AdmissionTest(const TestMachineOptions& options = {})
      : core_(options) {}

  void Push(Customer& customer, std::vector<Want> wants, uint64_t tag = 0,
            absl::Time deadline = absl::InfiniteFuture()) {
    core_.customers.Push(customer, {.queue = customer.id,
                                    .wants = std::move(wants),
                                    .tag = tag,
                                    .deadline = deadline});
  }
  void Admit(Customer& customer) {
    core_.admission.Admit(customer, core_.machine.clock.Now(), &errors_);
  }
  // What a mover does with them.
  void Hear(const Arrival& arrival) { Hear(absl::MakeConstSpan(&arrival, 1)); }
  void Hear(absl::Span<const Arrival> arrivals) {
    for (const Arrival& each : arrivals) {
      if (each.kind == Arrival::Kind::kWhole) {
        core_.admission.OnWhole(each);
      } else if (each.kind == Arrival::Kind::kWritten) {
        core_.write_back.OnWritten(each);
      } else if (each.kind == Arrival::Kind::kWriteFailed) {
        core_.write_back.OnWriteFailed(each, true, &errors_);
      } else {
        core_.residency.OnGone(*each.tensor, each.late_room, each.status);
        core_.admission.OnFetchFailed(*each.tensor, each.status);
      }
    }
  }
  // What is ready by now.
  std::vector<ReadyGroup> Take(Customer& customer) {
    return std::exchange(customer.ready, {});
  }
  // Ends pins as a mover does.
  void EndPins(std::vector<ReadyGroup> taken, PinEnd end) {
    for (const ReadyGroup& ready : taken) {
      for (const Grant& grant : *ready.grants) {
        core_.inbox->EndPin(grant.token, end);
      }
    }
    core_.Hear();
    for (const EndPinRequest& each : std::exchange(core_.ended_pins, {})) {
      const auto ended = core_.pins.End(each.token, each.end);
      TERRACE_CHECK(ended.ok());
      --core_.customers.Find(ended->queue)->held_pins;
      if (ended->dirty) core_.write_back.OnDirty(*ended->tensor);
    }
  }
  static Want Read(const Tensor& tensor) { return {tensor.id, Access::kRead}; }
  static Want Update(const Tensor& tensor) {
    return {tensor.id, Access::kUpdate};
  }
  static Want Overwrite(const Tensor& tensor) {
    return {tensor.id, Access::kOverwrite};
  }
  Tensor& AddResting(const std::string& name) {
    Tensor& tensor = core_.Add(name);
    core_.Rest(tensor);
    return tensor;
  }

  TestCore core_;
  std::vector<QueueError> errors_;
};

}  // namespace terrace
