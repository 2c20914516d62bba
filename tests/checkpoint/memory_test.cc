// The memory that a save and a load take: a block, not the state.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "checkpoint/weight_files.h"
#include "gtest/gtest.h"
#include "kernels/checksum.h"
#include "tests/checkpoint/job.h"
#include "tests/checkpoint/safetensors_writer.h"

namespace terrace {
namespace {

// Of this process, in bytes: "VmRSS", or "VmHWM", its peak.
int64_t Memory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  int64_t kilobytes = -1;
  for (std::string line; std::getline(status, line);) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, field + ":") &&
        absl::ConsumeSuffix(&rest, "kB") &&
        absl::SimpleAtoi(rest, &kilobytes)) {
      return kilobytes << 10;
    }
  }
  return -1;
}

// The peak counts from here on; false: this kernel cannot.
bool ForgetPeak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

TEST(CheckpointMemory, IsABlockWhateverTheState) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitiser's shadow is memory too";
#endif
  // 160 MB of state behind a budget of 24 MiB: chunks come and go.
  Job job(Model::Of({{"embedding", DType::kFloat32, 12'000'000},
                     {"half", DType::kBFloat16, 5'333'333}},
                    1),
          {.files = true,
           .paths = 2,
           .budget_bytes = 24 << 20,
           .chunk_bytes = 8 << 20});
  ASSERT_TRUE(job.ok());
  job.Step(1);
  TemporaryDirectory directory;
  constexpr int64_t kMost = 24 << 20;
  if (!ForgetPeak()) GTEST_SKIP() << "the peak cannot be reset here";
  int64_t before = Memory("VmRSS");
  ASSERT_TRUE(job.Save(directory.path()).ok());
  const int64_t saving = Memory("VmHWM") - before;
  ASSERT_TRUE(ForgetPeak());
  before = Memory("VmRSS");
  ASSERT_TRUE(job.Load(directory.path()).ok());
  const int64_t loading = Memory("VmHWM") - before;
  RecordProperty("saving_bytes", std::to_string(saving));
  RecordProperty("loading_bytes", std::to_string(loading));
  std::printf("saving took %.1f MiB, loading %.1f MiB\n",
              static_cast<double>(saving) / (1 << 20),
              static_cast<double>(loading) / (1 << 20));
  EXPECT_LE(saving, kMost);
  EXPECT_LE(loading, kMost);
  EXPECT_EQ(job.optimizer().step(), 1);
}

// A mask of 96 MiB, and values of 64 MiB, which a load has once.
TEST(CheckpointMemory, IsABlockWhateverTheDTypeAndTheValues) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitiser's shadow is memory too";
#endif
  std::vector<char> mask(96 << 20, 1);
  const std::vector<CheckpointTensor> tensors = {
      {.name = "mask",
       .dtype = StoredDType::kBool,
       .shape = {static_cast<int64_t>(mask.size())},
       .data = mask.data()}};
  CheckpointContents contents{.parameters = tensors};
  constexpr int64_t kValueBytes = 64 << 20;
  contents.values = {{"bytes", CheckpointBytes{std::string(kValueBytes, 'x')}}};
  TemporaryDirectory directory;
  constexpr int64_t kMost = 24 << 20;
  if (!ForgetPeak()) GTEST_SKIP() << "the peak cannot be reset here";
  int64_t before = Memory("VmRSS");
  ASSERT_TRUE(SaveCheckpoint(directory.path(), contents, InAMinute()).ok());
  const int64_t saving = Memory("VmHWM") - before;
  contents.values.clear();
  ASSERT_TRUE(ForgetPeak());
  before = Memory("VmRSS");
  auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_TRUE((*checkpoint)->Load(tensors, nullptr, InAMinute()).ok());
  const int64_t loading = Memory("VmHWM") - before - kValueBytes;
  std::printf("saving took %.1f MiB, loading %.1f MiB\n",
              static_cast<double>(saving) / (1 << 20),
              static_cast<double>(loading) / (1 << 20));
  EXPECT_LE(saving, kMost);
  EXPECT_LE(loading, kMost);
  EXPECT_LT(std::filesystem::file_size(directory.path() + "/checkpoint.json"),
            4096u);
}

// What others wrote, of 16 MiB that say nothing: no parser makes anything of
// it.
TEST(CheckpointMemory, IsThatOfTheTextWhateverItNests) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitiser's shadow is memory too";
#endif
  constexpr int64_t kSize = 16 << 20;
  const auto filled = [](const std::string& piece) {
    std::string text = "{\"a\":[";
    while (text.size() + piece.size() < kSize) text += piece;
    return text + "0]}";
  };
  const std::string nested = "{\"a\":" + std::string(kSize / 2, '[') +
                             std::string(kSize / 2, ']') + "}";
  for (const std::string& text : {nested, filled("[],"), filled("{},"),
                                  filled("[[[[]]]],"), filled("{\"\":0},")}) {
    TemporaryDirectory folder;
    folder.Write("checkpoint.json",
                 absl::StrCat("{\"checksum\":\"",
                              absl::Hex(Checksum(text.data(), text.size()),
                                        absl::kZeroPad16),
                              "\",\"checkpoint\":", text, "}\n"));
    folder.Write("weights", SafetensorsFile(text, ""));
    folder.Write("index.safetensors.index.json", text);
    const auto grown = [](const std::function<absl::Status()>& open) {
      EXPECT_TRUE(ForgetPeak());
      const int64_t before = Memory("VmRSS");
      const absl::Status status = open();
      EXPECT_FALSE(status.ok());
      return Memory("VmHWM") - before;
    };
    EXPECT_LE(grown([&] {
                const auto status = Checkpoint::Open(folder.path()).status();
                EXPECT_TRUE(absl::IsDataLoss(status)) << status;
                return status;
              }),
              4 * kSize)
        << text.substr(0, 20);
    EXPECT_LE(grown([&] {
                return WeightFiles::Open(folder.path() + "/weights").status();
              }),
              4 * kSize)
        << text.substr(0, 20);
    EXPECT_LE(grown([&] { return WeightFiles::Open(folder.path()).status(); }),
              4 * kSize)
        << text.substr(0, 20);
  }
}

}  // namespace
}  // namespace terrace
