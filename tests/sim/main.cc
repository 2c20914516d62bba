// gtest's main, and the flags of seeds.h.
#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "tests/sim/seeds.h"

namespace terrace {

SeedFlags& seed_flags() {
  static SeedFlags flags;
  return flags;
}

void ForEachSeed(uint64_t count, absl::FunctionRef<void(uint64_t)> body) {
  const SeedFlags& flags = seed_flags();
  const uint64_t seeds = flags.count > 0 ? flags.count : count;
  std::printf("seeds %llu to %llu\n",
              static_cast<unsigned long long>(flags.first),
              static_cast<unsigned long long>(flags.first + seeds - 1));
  for (uint64_t seed = flags.first; seed < flags.first + seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "--first_seed=" << seed << " --seeds=1");
    body(seed);
    if (testing::Test::HasFailure()) {
      std::printf("failed with seed %llu\n",
                  static_cast<unsigned long long>(seed));
      return;
    }
  }
}

}  // namespace terrace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  terrace::SeedFlags& flags = terrace::seed_flags();
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    uint64_t* value = nullptr;
    if (absl::ConsumePrefix(&argument, "--seeds=")) {
      value = &flags.count;
    } else if (absl::ConsumePrefix(&argument, "--first_seed=")) {
      value = &flags.first;
    } else if (absl::ConsumePrefix(&argument, "--operations=")) {
      value = &flags.operations;
    }
    if (value == nullptr || !absl::SimpleAtoi(argument, value)) {
      std::fprintf(stderr,
                   "%s: not a flag; --seeds=N, --first_seed=S or "
                   "--operations=N\n",
                   argv[i]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
