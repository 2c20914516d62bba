// The mover's parts without its turn: a test calls what it is about and turns
// the rest by hand.
//
//   TestCore core({.paths = 1});
//   Tensor& tensor = core.Add("a");
//   core.Rest(tensor);                      // written, whole on tier 1 alone
//   core.transfers.StartFill(tensor, core.residency.FindRoom(tensor), ...);
//   std::vector<Arrival> arrivals = core.Settle();
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/motion/transcript.h"
#include "runtime/mover/core.h"
#include "tests/support/medium/tier_ids.h"
#include "tests/support/test_machine.h"

namespace terrace {

// What a core for tests stands on, so made before it.
struct TestCoreGround {
  TestMachine machine;
  Transcript transcript;
};

struct TestCore : TestCoreGround, Core {
  explicit TestCore(const TestMachineOptions& options = {},
                    const std::vector<PathPrior>& priors = {});
  // What `never` holds back is let go, and ends.
  ~TestCore();

  // A registered tensor with a place on that tier; kNoTier: without.
  Tensor& Add(const std::string& name, int64_t size_bytes, TierId home);
  // With one on the first.
  Tensor& Add(const std::string& name, int64_t size_bytes = kPage) {
    return Add(name, size_bytes, resting.ids().front());
  }
  // Written in memory outside the windows, and not below.
  void Write(Tensor& tensor);
  // Publishes new contents in the copy that it has.
  void Update(Tensor& tensor);
  // Written, and whole below alone.
  void Rest(Tensor& tensor);
  // From below into room outside the windows.
  void Fetch(Tensor& tensor);
  // The payload of its copy in memory.
  absl::Span<std::byte> Payload(const Tensor& tensor);
  Customer& Open(int64_t slot_bytes, int slots);

  // Moves that end at once; their reports are kept.
  std::vector<Arrival> Poll();
  // Runs tasks and hears of events: what is sealed moves, what is wrong is
  // fetched again. Pins that end are kept for the test.
  std::vector<Arrival> Hear();
  // Both, until nothing moves any more but what a fault holds.
  std::vector<Arrival> Settle();
  // The same for so long, with a look whenever one is due.
  std::vector<Arrival> SettleFor(absl::Duration time);

  // A client of the test's.
  const std::shared_ptr<Port> port = ports.Open();
  std::vector<MoveReport> reports;
  std::vector<EndPinRequest> ended_pins;
  bool is_abandoned = false;  // its links are left behind
};

}  // namespace terrace
