// What the mover does over a thousand seeds, as one number: a change of its
// shape must not change a move, nor when, nor why, nor what a customer is
// told.
#include <cstdint>
#include <cstdio>

#include "gtest/gtest.h"
#include "tests/sim/digest.h"
#include "tests/sim/random_operations.h"
#include "tests/sim/seeds.h"

namespace terrace {
namespace {

// Of all seeds below. They change with a commit that says why.
constexpr uint64_t kDigest = 0x42cd2da4e805fdbf;
constexpr uint64_t kSeeds = 1000;
// Of those with a device above memory, and drawn tiers below.
constexpr uint64_t kDeviceDigest = 0x56519a32a7817549;
constexpr uint64_t kDeviceSeeds = 300;
constexpr int kOperations = 300;

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
    const uint64_t digest = DigestOf(transcript);
    all.Add(digest);
    lines += static_cast<int64_t>(transcript.size());
    if (seed_flags().count == 0) return;
    std::printf("seed %llu: %zu lines, digest %016llx\n",
                static_cast<unsigned long long>(seed), transcript.size(),
                static_cast<unsigned long long>(digest));
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
