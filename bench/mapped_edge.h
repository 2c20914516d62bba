// The edge between DRAM and a mapped tier, or memory that plays one, for
// `terrace-bench tiers`: a Copy transport's moves, and the least that copies
// the same pieces of 1 MiB on the same threads to a place of its own.
//
//   tier             the least
//   memory, far      memcpy, in the same memory
//   pmem             down: libpmem2's copy, or memcpy and msync of unsafe
//                    media; up: pread; in a file of its own
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/executor.h"
#include "bench/report/document.h"
#include "bench/rounds.h"
#include "bench/tier_copies.h"
#include "terrace/tier.h"
#include "tiers/medium.h"
#include "tiers/memory/host_arena.h"

namespace terrace::bench {

class MappedEdge {
 public:
  // Anonymous memory as the tier.
  static absl::StatusOr<std::unique_ptr<MappedEdge>> OfMemory(
      int64_t size_bytes);
  // Of far memory or persistent memory in a directory, with `size_bytes` or
  // its budget. As FarMedium and PmemMedium say; InvalidArgument: another tier.
  static absl::StatusOr<std::unique_ptr<MappedEdge>> Of(const TierSpec& tier,
                                                        int64_t size_bytes,
                                                        bool unsafe_media);
  ~MappedEdge();

  // All of dram(), once.
  absl::StatusOr<Sample> RunTransport(Executor& executor, Way way);
  absl::StatusOr<Sample> RunLoop(Executor& executor, Way way);

  absl::Span<std::byte> dram() { return dram_->bytes(); }
  Medium& medium() { return *medium_; }
  const std::string& loop_name() const { return loop_name_; }
  // Of a transport; none where it waits for a file.
  std::optional<Bar> bar() const {
    return memory_ != nullptr ? std::optional<Bar>(kCopyBar) : std::nullopt;
  }

 private:
  MappedEdge() = default;
  static absl::StatusOr<std::unique_ptr<MappedEdge>> Make(int64_t size_bytes);
  // Each byte has been written before any is measured.
  absl::Status Touch();

  std::unique_ptr<HostArena> dram_;
  std::unique_ptr<HostArena> memory_;  // of the tier, where that is no file
  std::unique_ptr<Medium> medium_;
  std::unique_ptr<Medium> raw_;  // the loop's
  std::string loop_name_;
};

}  // namespace terrace::bench
