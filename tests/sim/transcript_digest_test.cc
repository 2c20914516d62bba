// What the mover does over a thousand seeds, as one number: a change of its
// shape must not change a move, nor when, nor why, nor what a customer is
// told.
#include <cstdint>
#include <cstdio>

#include "gtest/gtest.h"
#include "runtime/motion/transcript.h"
#include "tests/sim/random_operations.h"
#include "tests/sim/seeds.h"

namespace terrace {
namespace {

// Of all seeds below. They change with a commit that says why.
constexpr uint64_t kDigest = 0xbe0b21999b76a61c;
constexpr uint64_t kSeeds = 1000;
// Of those with a device above memory, and drawn tiers below.
constexpr uint64_t kDeviceDigest = 0xe7f875478e308ae6;
constexpr uint64_t kDeviceSeeds = 300;
constexpr int kOperations = 300;

// FNV-1a, 64 bits, of whole words (Fowler, Noll, Vo: RFC 9923).
class Digest {
 public:
  void Add(uint64_t word) {
    for (int i = 0; i < 8; ++i) {
      value_ = (value_ ^ ((word >> (8 * i)) & 0xff)) * 0x100000001b3;
    }
  }
  void Add(const TranscriptLine& line) {
    Add(static_cast<uint64_t>(absl::ToUnixNanos(line.at)));
    Add(static_cast<uint64_t>(line.event));
    Add(static_cast<uint64_t>(line.code));
    Add(static_cast<uint64_t>(line.tensor));
    Add(static_cast<uint64_t>(line.from));
    Add(static_cast<uint64_t>(line.to));
    Add(static_cast<uint64_t>(line.io_class));
    Add(line.generation);
    Add(static_cast<uint64_t>(line.queue));
    Add(line.tag);
    Add(static_cast<uint64_t>(line.cause));
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

void ExpectDigest(uint64_t seeds, Tiers tiers, uint64_t expected) {
  Digest all;
  int64_t lines = 0;
  ForEachSeed(seeds, [&](uint64_t seed) {
    Transcript transcript;
    {
      const Trouble troubles[] = {Trouble::kNone, Trouble::kAny,
                                  Trouble::kRefusal};
      RandomOperations operations(seed, troubles[seed % 3], &transcript, tiers);
      operations.Run(kOperations);
    }
    Digest digest;
    for (const TranscriptLine& line : transcript) digest.Add(line);
    all.Add(digest.value());
    lines += static_cast<int64_t>(transcript.size());
    if (seed_flags().count == 0) return;
    std::printf("seed %llu: %zu lines, digest %016llx\n",
                static_cast<unsigned long long>(seed), transcript.size(),
                static_cast<unsigned long long>(digest.value()));
  });
  std::printf("%lld lines, digest 0x%016llx\n", static_cast<long long>(lines),
              static_cast<unsigned long long>(all.value()));
  if (seed_flags().count > 0) return;
  EXPECT_EQ(all.value(), expected);
}

TEST(TranscriptDigest, IsThatOfTheMoverBefore) {
  ExpectDigest(kSeeds, Tiers::kDisks, kDigest);
}

TEST(TranscriptDigest, WithADeviceIsThatOfTheMoverBefore) {
  ExpectDigest(kDeviceSeeds, Tiers::kDevice, kDeviceDigest);
}

}  // namespace
}  // namespace terrace
