// The scripts of io_queue_script.h, drawn and from the corpus, without
// libFuzzer. --inputs=N draws that many, from --first_seed=S on.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "tests/fuzz/io_queue_script.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace terrace {
namespace {

uint64_t inputs = 10000;
uint64_t first_seed = 1;

// Uneven on purpose: long scripts of few kinds of steps get further than even
// noise does.
std::vector<uint8_t> Draw(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> kinds(1 + random() % 24);
  for (uint8_t& kind : kinds) kind = static_cast<uint8_t>(random());
  std::vector<uint8_t> script(random() % 600);
  for (uint8_t& byte : script) {
    byte = random() % 2 == 0 ? kinds[random() % kinds.size()]
                             : static_cast<uint8_t>(random());
  }
  return script;
}

TEST(IoQueueFuzz, NoDrawnScriptBreaksAPromise) {
  int64_t transfers = 0;
  int64_t good_ends = 0;
  for (uint64_t seed = first_seed; seed < first_seed + inputs; ++seed) {
    // Before it runs: the library's own checks abort.
    if (seed % 1000 == 0) {
      std::printf("seeds from %" PRIu64 " on\n", seed);
      std::fflush(stdout);
    }
    const ScriptResult result = RunIoQueueScript(Draw(seed));
    ASSERT_EQ(result.problem, "") << "--inputs=1 --first_seed=" << seed;
    transfers += result.transfers;
    good_ends += result.good_ends;
  }
  std::printf("%" PRId64 " transfers, %" PRId64 " of them ended well\n",
              transfers, good_ends);
  if (inputs >= 1000) {
    EXPECT_GT(transfers, static_cast<int64_t>(inputs));
    EXPECT_GT(good_ends, transfers / 10);
    EXPECT_LT(good_ends, transfers - transfers / 10);
  }
}

TEST(IoQueueFuzz, NoScriptOfTheCorpusBreaksAPromise) {
  int found = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(TERRACE_FUZZ_CORPUS)) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    const std::vector<uint8_t> script(bytes.begin(), bytes.end());
    EXPECT_EQ(RunIoQueueScript(script).problem, "") << entry.path();
    EXPECT_EQ(LLVMFuzzerTestOneInput(script.data(), script.size()), 0);
    ++found;
  }
  EXPECT_GT(found, 0) << TERRACE_FUZZ_CORPUS;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    uint64_t* value = nullptr;
    if (absl::ConsumePrefix(&argument, "--inputs=")) {
      value = &terrace::inputs;
    } else if (absl::ConsumePrefix(&argument, "--first_seed=")) {
      value = &terrace::first_seed;
    }
    if (value == nullptr || !absl::SimpleAtoi(argument, value)) {
      std::fprintf(stderr, "%s: not a flag; --inputs=N or --first_seed=S\n",
                   argv[i]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
