// A Copy transport between plain vectors, turned by hand: DRAM, and two mapped
// tiers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "tests/support/inline_executor.h"
#include "tests/support/manual_clock.h"
#include "tests/support/medium/fault_medium.h"
#include "tests/support/medium/tier_ids.h"
#include "tests/support/medium/vector_medium.h"
#include "tiers/copy_transport.h"

namespace terrace {

inline constexpr int64_t kMiB = 1 << 20;
inline constexpr TierId kFirst = {TierKind::kFar, 0};
inline constexpr TierId kSecond = {TierKind::kPmem, 2};

// Eight bytes at a time; what is left at the end stays.
inline void FillRandom(absl::Span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const uint64_t value = seed ^ (seed >> 32);
    std::memcpy(bytes.data() + i, &value, 8);
  }
}

// In one call: a loop over bytes takes its time under a sanitiser.
inline bool SameBytes(const std::vector<std::byte>& one,
                      const std::vector<std::byte>& other) {
  return one.size() == other.size() &&
         std::memcmp(one.data(), other.data(), one.size()) == 0;
}

// `offset` is the same at both ends.
inline Move MoveOf(uint64_t tag, Edge edge, int64_t offset, int64_t size_bytes,
                   std::vector<std::byte>& dram, IoClass io_class) {
  Move move;
  move.tag = tag;
  move.edge = edge;
  move.from = {offset, size_bytes};
  move.to = {offset, size_bytes};
  move.data = dram.data() + offset;
  move.io_class = io_class;
  return move;
}

class CopyTransportTest : public testing::Test {
 protected:
  static constexpr int64_t kBytes = 32 * kMiB;

  CopyTransportTest() { Make(1); }
  ~CopyTransportTest() override { executor_->RunAll(); }

  // Anew, on that many workers.
  void Make(int workers) {
    transport_.reset();
    if (executor_) executor_->RunAll();
    executor_ = std::make_unique<InlineExecutor>(workers);
    transport_ = std::make_unique<CopyTransport>(
        std::vector<CopyEnd>{{kFirst, &first_}, {kSecond, &second_}},
        *executor_, clock_, [this] { ++wakes_; });
  }

  void Begin(uint64_t tag, Edge edge, int64_t offset, int64_t size_bytes,
             IoClass io_class = IoClass::kDemand) {
    transport_->Begin(MoveOf(tag, edge, offset, size_bytes, dram_, io_class));
  }
  std::vector<Moved> Poll() {
    std::vector<Moved> moved;
    transport_->Poll(&moved);
    return moved;
  }
  // Runs all; each tag's end, which is its only one.
  std::map<uint64_t, absl::Status> Finish() {
    std::map<uint64_t, absl::Status> ends;
    bool ran = true;
    while (ran) {
      ran = executor_->RunOne();
      for (const Moved& each : Poll()) {
        EXPECT_FALSE(each.late || each.released);
        EXPECT_TRUE(ends.emplace(each.tag, each.status).second) << each.tag;
      }
    }
    EXPECT_EQ(transport_->pending(), 0);
    return ends;
  }
  // The pieces that `medium` was asked for, by where they are: a letter for
  // each MiB, from 'a'.
  static std::string Pieces(const FaultMedium& medium) {
    std::string pieces;
    for (const MediumCall& call : medium.calls()) {
      pieces += static_cast<char>('a' + call.offset / kMiB);
    }
    return pieces;
  }

  VirtualClock clock_;
  std::vector<std::byte> dram_ = std::vector<std::byte>(kBytes);
  VectorMedium first_bytes_{"first", kBytes};
  VectorMedium second_bytes_{"second", kBytes};
  FaultMedium first_{first_bytes_};
  FaultMedium second_{second_bytes_};
  int wakes_ = 0;
  std::unique_ptr<InlineExecutor> executor_;
  std::unique_ptr<CopyTransport> transport_;
};

}  // namespace terrace
