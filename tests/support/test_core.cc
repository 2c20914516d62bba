#include "tests/support/test_core.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>
#include <utility>
#include <variant>

#include "base/check.h"
#include "terrace/runtime.h"
#include "tiers/extent_header.h"

namespace terrace {

TestCore::TestCore(const TestMachineOptions& options,
                   const std::vector<PathPrior>& priors)
    : TestCoreGround{TestMachine(options), {}},
      Core(machine.MakeParts(priors, &transcript)) {}

TestCore::~TestCore() {
  machine.faults->Clear();
  if (machine.hbm != nullptr) machine.hbm->held->release = true;
  if (!is_abandoned) {
    Settle();
    TERRACE_CHECK(links.pending() == 0);
  }
  for (InlineExecutor& each : machine.background) each.RunAll();
}

Tensor& TestCore::Add(const std::string& name, int64_t size_bytes,
                      TierId home) {
  Tensor& tensor = **table.Add({.name = name, .size_bytes = size_bytes});
  table.Admit(tensor);
  if (home == kNoTier) return tensor;
  auto place = resting.at(home).Allocate(ResidentBytes(size_bytes), true);
  TERRACE_CHECK(place.ok() && place->has_value());
  tensor.GivePlace(std::move(**place));
  return tensor;
}

void TestCore::Write(Tensor& tensor) {
  Reservation room = residency.FindRoom(tensor);
  TERRACE_CHECK(!room.empty());
  tensor.BeginOverwrite(std::move(room));
  Update(tensor);
}

void TestCore::Update(Tensor& tensor) {
  tensor.Hold(kDramTier, Access::kOverwrite);
  std::memset(Payload(tensor).data(), 1 + static_cast<int>(tensor.id.value),
              Payload(tensor).size());
  tensor.Publish(kDramTier);
  tensor.Unhold(kDramTier, Access::kOverwrite);
}

void TestCore::Rest(Tensor& tensor) {
  Write(tensor);
  transfers.StartDrain(tensor, tensor.resting()->place.tier(), {});
  Settle();
  TERRACE_CHECK(tensor.Fetchable());
  residency.Drop(tensor);
}

void TestCore::Fetch(Tensor& tensor) {
  Reservation room = residency.FindRoom(tensor);
  TERRACE_CHECK(!room.empty());
  transfers.StartFill(tensor, std::move(room), IoClass::kDemand);
  Settle();
  TERRACE_CHECK(tensor.Delivered(kDramTier));
}

absl::Span<std::byte> TestCore::Payload(const Tensor& tensor) {
  std::byte* const copy = dram.Address(tensor.at(kDramTier)->place.extent());
  return {copy + kTensorHeaderBytes,
          static_cast<size_t>(tensor.spec.size_bytes)};
}

Customer& TestCore::Open(int64_t slot_bytes, int slots) {
  Reservation range = residency.FindRange(WindowBytes(slot_bytes, slots));
  TERRACE_CHECK(!range.empty());
  Customer& customer = customers.Open(*residency.windows().Open(
      std::move(range), ResidentBytes(slot_bytes), slots));
  planner.Open(customer.id);
  return customer;
}

std::vector<Arrival> TestCore::Poll() {
  std::vector<Moved> moved;
  std::vector<Arrival> arrivals;
  transfers.StartWaiting(&arrivals);
  links.Poll(&moved);
  for (const Moved& each : moved) {
    reports.push_back(transfers.OnMoved(each, &arrivals));
    placement.OnMoved(reports.back());
  }
  return arrivals;
}

std::vector<Arrival> TestCore::Hear() {
  machine.executor.RunAll();
  std::deque<Message> messages;
  inbox->Drain(&messages);
  std::vector<Arrival> arrivals;
  for (const Message& message : messages) {
    if (const auto* request = std::get_if<Request>(&message)) {
      ended_pins.push_back(std::get<EndPinRequest>(*request));
      continue;
    }
    const Event& event = std::get<Event>(message);
    if (const auto* sealed = std::get_if<Sealed>(&event)) {
      Tensor& tensor = transfers.OnSealed(*sealed);
      const TierId to = transfers.DrainTier(tensor);
      transfers.StartMove(tensor, placement.failures(to));
    } else if (const auto* checked = std::get_if<Checked>(&event)) {
      transfers.OnChecked(*checked, /*again=*/true, /*matters=*/true,
                          &arrivals);
    } else if (const auto* grown = std::get_if<Grown>(&event)) {
      registrar.On(*grown);
    } else if (const auto* removed = std::get_if<Removed>(&event)) {
      resting.OnRemoved(*removed);
    }
  }
  return arrivals;
}

std::vector<Arrival> TestCore::Settle() {
  constexpr int kRounds = 16;  // a move has two, its task one
  std::vector<Arrival> all;
  for (int round = 0; round < kRounds; ++round) {
    for (auto hear : {&TestCore::Poll, &TestCore::Hear}) {
      std::vector<Arrival> arrivals = (this->*hear)();
      std::move(arrivals.begin(), arrivals.end(), std::back_inserter(all));
    }
  }
  return all;
}

std::vector<Arrival> TestCore::SettleFor(absl::Duration time) {
  const absl::Time end = machine.clock.Now() + time;
  std::vector<Arrival> all = Settle();
  while (machine.clock.Now() < end) {
    const absl::Time least = machine.clock.Now() + absl::Milliseconds(1);
    machine.clock.JumpTo(std::min(end, std::max(least, links.NextEvent())));
    std::vector<Arrival> arrivals = Settle();
    std::move(arrivals.begin(), arrivals.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace terrace
