// A mover's parts, put together: each with what it needs of the others. Their
// holder says when each is called: the mover in the order of its turn, a test
// of one part as the test goes.
//
// One thread; only the inbox is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "aio/io_paths.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/threads/heartbeat.h"
#include "policies/eviction.h"
#include "policies/path_placement.h"
#include "prefetch/trace_planner.h"
#include "runtime/messages/inbox.h"
#include "runtime/messages/ports.h"
#include "runtime/motion/links.h"
#include "runtime/motion/resting_tiers.h"
#include "runtime/motion/staging_room.h"
#include "runtime/motion/transcript.h"
#include "runtime/motion/transfers.h"
#include "runtime/mover/admission.h"
#include "runtime/mover/byte_admission.h"
#include "runtime/mover/closing.h"
#include "runtime/mover/customers.h"
#include "runtime/mover/mover_report.h"
#include "runtime/mover/prefetcher.h"
#include "runtime/mover/read_ahead.h"
#include "runtime/mover/restoration.h"
#include "runtime/mover/window_opener.h"
#include "runtime/residency/byte_pins.h"
#include "runtime/residency/evictions.h"
#include "runtime/residency/lent_room.h"
#include "runtime/residency/registrar.h"
#include "runtime/residency/tier_residency.h"
#include "runtime/residency/working_tiers.h"
#include "runtime/residency/write_back.h"
#include "runtime/residency/write_placement.h"
#include "runtime/tensor/pin_book.h"
#include "runtime/tensor/tensor_table.h"
#include "terrace/tier.h"
#include "tiers/byte_tier.h"
#include "tiers/disk/disk_file.h"
#include "tiers/medium.h"
#include "tiers/memory/dram_tier.h"
#include "tiers/memory/page_source.h"
#include "tiers/memory/spill/spill_room.h"
#include "tiers/tier_list.h"
#include "tiers/transport.h"

namespace terrace {

// A device whose memory customers work in, above the host's. Its tier and its
// transport are made when the mover's parts are.
struct CoreDevice {
  std::function<std::unique_ptr<Tier>(TierId id)> make_tier;
  // `wake` is for the end of a move, on any thread.
  std::function<std::unique_ptr<Transport>(TierId id,
                                           std::function<void()> wake)>
      make_transport;
  std::unique_ptr<EvictionPolicy> eviction;
  uintptr_t address = 0;  // of the tier's first byte, as pins tell it
};

struct CorePath {
  std::unique_ptr<DiskFile> file;
  PathPrior prior;  // its speed, as far as it is known before the job
  // Grows and removes its file and what killed jobs left beside it, one task
  // after the other, and may hang in it; the tasks own what they use. No part
  // waits for one.
  Executor* background = nullptr;
};

struct CoreMapped {
  TierSpec spec;
  std::shared_ptr<Medium> medium;
  PathPrior prior;
  Executor* background = nullptr;  // as a path's
};

// Another memory, beside the first.
struct CoreMemory {
  absl::Span<std::byte> arena;
  TierSpec spec;
  std::shared_ptr<Medium> medium;  // the arena, as copies have it
  std::unique_ptr<EvictionPolicy> eviction;
};

// What a core is made from; a test replaces any of it. All referenced objects
// outlive the core.
struct CoreParts {
  Clock* clock = nullptr;
  Executor* executor = nullptr;
  absl::Span<std::byte> arena;  // of the host budget's size, in whole blocks
  TierSpec memory = {};         // as DramTier has it
  // For what spills over the arena; null: mappings of this process.
  std::shared_ptr<SpillSource> spill;
  // Of the arena, as far as that can be lent; null: it cannot.
  std::shared_ptr<PageSource> pages;
  std::vector<CoreMemory> other_memories;
  std::unique_ptr<IoPaths> io;
  std::vector<CoreDevice> devices;
  std::vector<CoreMapped> mapped;  // the faster ones first
  std::vector<CorePath> paths;     // path k is io's path k
  std::unique_ptr<EvictionPolicy> eviction;
  bool prefetch = true;
  absl::Duration io_timeout = absl::Seconds(60);
  Transcript* transcript = nullptr;      // null: none is written
  std::shared_ptr<Heartbeat> heartbeat;  // the mover's; null: nobody looks
  ImageKeeper* keeper = nullptr;         // null: nobody keeps the image
};

// Tiers that not every runtime has: other memories, and devices. Without
// devices nothing uses the staging.
struct OtherTiers {
  // `parts`: all but the tier and its eviction.
  OtherTiers(CoreParts& core, const TierResidencyParts& parts, Tier& memory);

  std::vector<std::unique_ptr<Tier>> tiers;
  StagingRoom staging;
  std::vector<std::unique_ptr<TierResidency>> residencies;
};

struct Core {
  explicit Core(CoreParts parts);

  // What it says of itself, by what is true at the call.
  Report report() const;
  // Tells customers what is ready, as of so many messages; what has ended is
  // forgotten.
  void Publish(uint64_t processed);
  // When something is to be done without links or a message, the end's
  // deadline aside.
  absl::Time NextDeadline() const;

  Clock& clock;
  const std::shared_ptr<Heartbeat> heartbeat;
  ImageKeeper* const keeper;  // null: nobody keeps the image
  const std::shared_ptr<Inbox> inbox;
  Ports ports;
  // Reservations outlive nothing that they are made from: tiers first, then
  // windows, then tensors, then transfers.
  const std::shared_ptr<PageSource> pages;  // null: memory cannot be lent
  DramTier dram;
  Links links;
  RestingTiers resting;
  TracePlanner planner;
  PinBook pins;
  BytePins byte_pins;
  SpillRoom spill;          // beside the first memory
  TierResidency residency;  // of the first memory
  OtherTiers others;
  const WorkingTiers working;  // those
  const TierList tiers;        // all
  TensorTable table;
  Transfers transfers;
  WritePlacement placement;
  WriteBack write_back;
  Evictions evictions;
  LentRoom lent;  // of the first memory
  Registrar registrar;
  Customers customers;
  Admission admission;
  ReadAhead read_ahead;
  MemoryPassage passage;
  ByteAdmission byte_admission;
  Prefetcher prefetcher;
  WindowOpener opener;
  Closing closing;
  Restoration restoration;
};

}  // namespace terrace
