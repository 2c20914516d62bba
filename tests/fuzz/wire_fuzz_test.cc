// The targets of wire_targets.h with inputs that are drawn, without libFuzzer:
// messages that are read, changed a little, and changed again where that was
// read too. --milliseconds=N is what each target has, of its own processor
// time; --first_seed=S where the draws begin.
#include <time.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "tests/fuzz/wire_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace terrace {
namespace {

uint64_t milliseconds = 5000;  // twenty seconds of all
uint64_t first_seed = 1;

using Input = std::vector<uint8_t>;

uint64_t ProcessorMilliseconds() {
  timespec used = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<uint64_t>(used.tv_sec) * 1000 +
         static_cast<uint64_t>(used.tv_nsec) / 1'000'000;
}

// Bytes and words that a reader may take for lengths and offsets, and parts of
// other inputs.
void Change(std::mt19937_64& random, const std::vector<Input>& others,
            Input* input) {
  if (input->empty()) input->resize(1 + random() % 64);
  const size_t at = random() % input->size();
  switch (random() % 7) {
    case 0:
      (*input)[at] = static_cast<uint8_t>(random());
      return;
    case 1:
      (*input)[at] = static_cast<uint8_t>((*input)[at] ^ (1 << random() % 8));
      return;
    case 2: {
      constexpr uint8_t kEdges[] = {0, 1, 2, 4, 127, 128, 252, 255};
      for (size_t i = at; i < std::min(at + 4, input->size()); ++i) {
        (*input)[i] = kEdges[random() % std::size(kEdges)];
      }
      return;
    }
    case 3:
      input->resize(at);
      return;
    case 4: {
      const Input& other = others[random() % others.size()];
      if (other.empty()) return;
      const size_t from = random() % other.size();
      const size_t count = std::min(
          {1 + random() % 64, other.size() - from, input->size() - at});
      std::copy_n(other.begin() + static_cast<ptrdiff_t>(from), count,
                  input->begin() + static_cast<ptrdiff_t>(at));
      return;
    }
    case 5:
      input->erase(input->begin() + static_cast<ptrdiff_t>(at));
      return;
    default:
      input->insert(input->begin() + static_cast<ptrdiff_t>(at),
                    1 + random() % 4, static_cast<uint8_t>(random()));
      return;
  }
}

class EachDecoder : public testing::TestWithParam<WireTarget> {};

TEST_P(EachDecoder, KeepsItsPromisesWhateverComes) {
  const WireTarget& target = GetParam();
  const std::vector<Input> seeds = target.seeds();
  for (const Input& seed : seeds) {
    const WireResult result = target.run(seed);
    EXPECT_EQ(result.problem, "");
    EXPECT_TRUE(result.was_read);
  }
  std::mt19937_64 random(first_seed);
  // What came of each seed and was read: it leads on to what is farther from
  // them. Each has as many, as small messages survive most changes.
  constexpr size_t kMostKept = 100;
  std::vector<std::vector<Input>> families;
  for (const Input& seed : seeds) families.push_back({seed});
  int64_t read = 0;
  int64_t refused = 0;
  const uint64_t end = ProcessorMilliseconds() + milliseconds;
  while (ProcessorMilliseconds() < end) {
    for (int i = 0; i < 100; ++i) {
      std::vector<Input>& family = families[random() % families.size()];
      Input input =
          random() % 4 == 0 ? family[0] : family[random() % family.size()];
      for (uint64_t k = 0; k <= random() % 4; ++k) {
        Change(random, seeds, &input);
      }
      const WireResult result = target.run(input);
      ASSERT_EQ(result.problem, "")
          << "--first_seed=" << first_seed << ", "
          << absl::BytesToHexString(absl::string_view(
                 reinterpret_cast<const char*>(input.data()), input.size()));
      ++(result.was_read ? read : refused);
      if (!result.was_read) continue;
      if (family.size() < kMostKept) {
        family.push_back(std::move(input));
      } else {
        family[1 + random() % (kMostKept - 1)] = std::move(input);
      }
    }
  }
  std::printf("%" PRId64 " inputs read, %" PRId64 " refused\n", read, refused);
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 100);
}

TEST(WireFuzz, TheWayInOfASearchTakesWhatIsRead) {
  for (const Input& seed : WireTargets()[0].seeds()) {
    EXPECT_EQ(LLVMFuzzerTestOneInput(seed.data(), seed.size()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, EachDecoder,
                         testing::ValuesIn(WireTargets().begin(),
                                           WireTargets().end()),
                         [](const auto& each) {
                           return std::string(each.param.name);
                         });

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    uint64_t* value = nullptr;
    if (absl::ConsumePrefix(&argument, "--milliseconds=")) {
      value = &terrace::milliseconds;
    } else if (absl::ConsumePrefix(&argument, "--first_seed=")) {
      value = &terrace::first_seed;
    }
    if (value == nullptr || !absl::SimpleAtoi(argument, value)) {
      std::fprintf(stderr,
                   "%s: not a flag; --milliseconds=N or --first_seed=S\n",
                   argv[i]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
