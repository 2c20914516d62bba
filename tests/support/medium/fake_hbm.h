// A device's memory for tests: plain bytes behind faults, which a Copy
// transport moves on an executor's threads, as a device would by itself. What
// computes there is the test: a pin's address is that of the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "base/executor.h"
#include "policies/eviction.h"
#include "runtime/mover/core.h"
#include "terrace/pin.h"
#include "tests/support/inline_executor.h"
#include "tests/support/medium/far_memory.h"
#include "tests/support/medium/held_transport.h"
#include "tiers/copy_transport.h"
#include "tiers/mapped_tier.h"

namespace terrace {

// Outlives the runtime that works in it, and the tasks that copy.
struct FakeHbm {
  explicit FakeHbm(int64_t size_bytes, const std::string& name = "cuda:0")
      : memory(std::make_shared<FarMemory>(name, size_bytes)) {}

  FaultMedium& faults() { return memory->faults; }
  HeldMoves& holds() { return *held; }

  // `copied`: what copies go to, around faults(), as long as the transport is;
  // null: faults().
  CoreDevice MakeDevice(Executor& executor, Clock& clock,
                        std::unique_ptr<EvictionPolicy> eviction,
                        Medium* copied = nullptr) {
    if (copied == nullptr) copied = &memory->faults;
    CoreDevice device;
    device.make_tier = [this](TierId id) {
      return std::make_unique<MappedTier>(
          MappedTierParts{.id = id,
                          .spec = {TierKind::kHbm, memory->bytes.name(),
                                   memory->bytes.size_bytes()},
                          .medium = MediumOf(memory),
                          .background = &unused,
                          .events = nullptr});
    };
    device.make_transport =
        [this, copied, &executor, &clock](
            TierId id,
            std::function<void()> wake) -> std::unique_ptr<Transport> {
      const std::vector<CopyEnd> ends = {{id, copied}};
      return std::make_unique<HeldTransport>(
          std::make_unique<CopyTransport>(ends, executor, clock,
                                          std::move(wake)),
          held);
    };
    device.eviction = std::move(eviction);
    device.address = reinterpret_cast<uintptr_t>(memory->bytes.bytes().data());
    return device;
  }

  const std::shared_ptr<FarMemory> memory;
  const std::shared_ptr<HeldMoves> held = std::make_shared<HeldMoves>();
  InlineExecutor unused;  // its tier has no file
};

// The payload of a pin at either working tier.
inline absl::Span<std::byte> PayloadOf(const Pin& pin, int64_t size_bytes) {
  if (!pin.data().empty()) return pin.data();
  return {reinterpret_cast<std::byte*>(pin.address()),
          static_cast<size_t>(size_bytes)};
}

}  // namespace terrace
