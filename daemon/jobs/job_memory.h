// What a job's process takes of the host's memory beside the budget that it
// began with: the growth of its arena, and for groups that have no room in the
// budget (terrace/byte_queue.h) a spill, of the same memory file. It is charged
// to the job as it is taken; growth, and pages of pins that the process still
// has when they end here, stay charged until the process has no memory here.
//
// The mover takes and gives the spill, and pages that are lent; the rest is for
// any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/jobs/charge.h"
#include "daemon/jobs/image/image_file.h"
#include "runtime/local_runtime.h"
#include "tiers/memory/host_arena.h"
#include "tiers/memory/page_source.h"
#include "tiers/memory/spill/shared_spill.h"
#include "tiers/memory/spill/spill_source.h"

namespace terrace {

class JobMemory final : public SpillSource, public PageSource {
 public:
  // The arena is a runtime's, and is not looked at once that has ended. Some of
  // it may be lent from the beginning.
  JobMemory(HostArena& arena, std::unique_ptr<Charge> charge,
            bool is_lent = false)
      : arena_(arena),
        spill_(arena),
        charge_(std::move(charge)),
        is_lent_(is_lent) {}

  // What is charged already, of a runtime that goes on here: growth, and spill
  // that TakeAt may take. What that has not taken is given at its end.
  void Restore(int64_t growth_bytes, int64_t spill_bytes);

  // ResourceExhausted also: a quota has no room for it.
  absl::StatusOr<int64_t> Take(int64_t size_bytes) override;
  bool TakeAt(const Extent& range) override;
  void EndTakeAt() override;
  void Give(const Extent& range) override;
  // What is taken stays charged, too.
  void Leak() override;

  bool has_all() const override { return !is_lent_; }
  // Of the arena, as it is lent and comes back: charged by who has it lent.
  void Empty(const Extent& range) override { arena_.EmptyRange(range); }
  absl::Status Populate(const Extent& range) override {
    return arena_.PopulateRange(range);
  }

  // As the runtime's, which has the arena; ResourceExhausted also: a quota has
  // no room for it. What grew is charged though the runtime refused it, and
  // stands in the image; null: there is none.
  absl::Status GrowMemory(LocalRuntime& runtime, int64_t bytes,
                          ImageFile* image);
  // The process uses its pins though they have ended here: what is given from
  // here on keeps its pages.
  void KeepSpill() { keeps_ = true; }
  // Of growth, of what was kept, and of what was not restored. Once the runtime
  // has ended.
  int64_t charged_bytes() const { return charged_bytes_ + restorable_bytes_; }

 private:
  absl::Status Charged(int64_t bytes);

  HostArena& arena_;
  SharedSpill spill_;
  const std::unique_ptr<Charge> charge_;
  const bool is_lent_;       // from the beginning
  bool has_leaked_ = false;  // the mover's
  // Of spill: the mover's, once it has begun to restore.
  int64_t restorable_bytes_ = 0;
  // Set by the session's thread before it posts the pins' ends, which the mover
  // hears after it.
  std::atomic<bool> keeps_ = false;
  // Added to by both; read once the runtime has ended.
  std::atomic<int64_t> charged_bytes_ = 0;
};

}  // namespace terrace
