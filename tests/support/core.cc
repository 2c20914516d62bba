#include "tests/support/core.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>
#include <utility>
#include <variant>

#include "terrace/runtime.h"
#include "tiers/extent_header.h"

namespace terrace {

Core::Core(const TestMachineOptions& options,
           const std::vector<PathPrior>& priors)
    : machine(options),
      inbox(std::make_shared<Inbox>([] {})),
      dram(machine.arena()),
      links(machine.MakeIo(), 1 + options.paths),
      resting(machine.MakeDisks(inbox)),
      residency({.tier = &dram,
                 .table = &table,
                 .pins = &pins,
                 .planner = &planner,
                 .eviction = MakeNextUsePolicy()}),
      transfers({.links = &links,
                 .executor = &machine.executor,
                 .inbox = inbox,
                 .dram = &dram,
                 .resting = &resting,
                 .clock = &machine.clock,
                 .transcript = &transcript,
                 .timeout = options.io_timeout}),
      placement(resting, links, priors),
      write_back({.residency = &residency,
                  .transfers = &transfers,
                  .placement = &placement,
                  .resting = &resting}),
      registrar({.table = &table,
                 .resting = &resting,
                 .placement = &placement,
                 .transfers = &transfers,
                 .residency = &residency,
                 .write_back = &write_back,
                 .pins = &pins}),
      customers(machine.clock, &transcript),
      admission({.customers = &customers,
                 .table = &table,
                 .pins = &pins,
                 .planner = &planner,
                 .residency = &residency,
                 .transfers = &transfers,
                 .write_back = &write_back,
                 .resting = &resting,
                 .clock = &machine.clock,
                 .inbox = inbox}) {}

Core::~Core() {
  machine.faults->Clear();
  if (!is_abandoned) {
    Settle();
    TERRACE_CHECK(links.pending() == 0);
  }
  for (InlineExecutor& each : machine.background) each.RunAll();
}

Tensor& Core::Add(const std::string& name, int64_t size_bytes, TierId home) {
  Tensor& tensor = **table.Add({.name = name, .size_bytes = size_bytes});
  table.Admit(tensor);
  if (home == kNoTier) return tensor;
  auto place = resting.at(home).Allocate(ResidentBytes(size_bytes), true);
  TERRACE_CHECK(place.ok() && place->has_value());
  tensor.GivePlace(std::move(**place));
  return tensor;
}

void Core::Write(Tensor& tensor) {
  Reservation room = residency.FindRoom(tensor);
  TERRACE_CHECK(!room.empty());
  tensor.BeginOverwrite(std::move(room));
  Update(tensor);
}

void Core::Update(Tensor& tensor) {
  tensor.Hold(kDram, Access::kOverwrite);
  std::memset(Payload(tensor).data(), 1 + static_cast<int>(tensor.id.value),
              Payload(tensor).size());
  tensor.Publish(kDram);
  tensor.Unhold(kDram, Access::kOverwrite);
}

void Core::Rest(Tensor& tensor) {
  Write(tensor);
  transfers.StartDrain(tensor, tensor.resting()->place.tier(), {});
  Settle();
  TERRACE_CHECK(tensor.Fetchable());
  residency.Drop(tensor);
}

void Core::Fetch(Tensor& tensor) {
  Reservation room = residency.FindRoom(tensor);
  TERRACE_CHECK(!room.empty());
  transfers.StartFill(tensor, std::move(room), IoClass::kDemand);
  Settle();
  TERRACE_CHECK(tensor.Delivered(kDram));
}

absl::Span<std::byte> Core::Payload(const Tensor& tensor) {
  std::byte* const copy = dram.Address(tensor.at(kDram)->place.extent());
  return {copy + kExtentHeaderBytes,
          static_cast<size_t>(tensor.spec.size_bytes)};
}

Customer& Core::Open(int64_t slot_bytes, int slots) {
  Reservation range = residency.FindRange(WindowBytes(slot_bytes, slots));
  TERRACE_CHECK(!range.empty());
  Customer& customer = customers.Open(*residency.windows().Open(
      std::move(range), ResidentBytes(slot_bytes), slots));
  planner.Open(customer.id);
  return customer;
}

std::vector<Arrival> Core::Poll() {
  std::vector<Moved> moved;
  links.Poll(&moved);
  std::vector<Arrival> arrivals;
  for (const Moved& each : moved) {
    reports.push_back(transfers.OnMoved(each, &arrivals));
    placement.OnMoved(reports.back());
  }
  return arrivals;
}

std::vector<Arrival> Core::Hear() {
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

std::vector<Arrival> Core::Settle() {
  constexpr int kRounds = 16;  // a move has two, its task one
  std::vector<Arrival> all;
  for (int round = 0; round < kRounds; ++round) {
    for (auto hear : {&Core::Poll, &Core::Hear}) {
      std::vector<Arrival> arrivals = (this->*hear)();
      std::move(arrivals.begin(), arrivals.end(), std::back_inserter(all));
    }
  }
  return all;
}

std::vector<Arrival> Core::SettleFor(absl::Duration time) {
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
