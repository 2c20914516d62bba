// The memory that a model from a checkpoint takes: the budget and a buffer, not
// the model.
#include <ATen/Parallel.h>
#include <malloc.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "terrace/torch/meta.h"
#include "terrace/torch/offload.h"
#include "tests/checkpoint/safetensors_writer.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

constexpr int64_t kWeightsBytes = 96 << 20;
constexpr int64_t kBudget = 24 << 20;
// One layer in memory as LibTorch makes it, with what its initialisation
// takes; what one of another dtype is converted through; threads' stacks, small
// allocations.
constexpr int64_t kBeside = 16 << 20;

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

// Layer i turns its input by i + 1 places and adds i: each row of its weight
// has a single one.
template <typename Value>
std::string WeightOf(int64_t width, int64_t layer, Value one) {
  std::vector<Value> weight(static_cast<size_t>(width * width));
  for (int64_t row = 0; row < width; ++row) {
    weight[static_cast<size_t>(row * width + (row + layer + 1) % width)] = one;
  }
  return {reinterpret_cast<const char*>(weight.data()),
          weight.size() * sizeof(Value)};
}

// In a folder with an index: a file for each layer, every other one of bf16.
void WriteFiles(const TemporaryDirectory& folder, int64_t width,
                int64_t layers) {
  std::string map;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string name = std::to_string(i);
    SafetensorsWriter writer;
    if (i % 2 == 0) {
      writer.Add(name + ".weight", "F32", {width, width},
                 WeightOf<float>(width, i, 1));
    } else {
      writer.Add(name + ".weight", "BF16", {width, width},
                 WeightOf<uint16_t>(width, i, 0x3f80));
    }
    writer.Add(
        name + ".bias", "F32", {width},
        std::vector<float>(static_cast<size_t>(width), static_cast<float>(i)));
    folder.Write("part" + name, writer.Bytes());
    for (const char* const what : {".weight", ".bias"}) {
      map += (map.empty() ? "\"" : ",\"") + name + what + "\":\"part" + name +
             "\"";
    }
  }
  folder.Write("model.safetensors.index.json",
               "{\"weight_map\":{" + map + "}}");
}

std::vector<float> Expected(size_t width, int64_t layers) {
  std::vector<float> values(width);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<float> turned(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      turned[i] = values[(i + static_cast<size_t>(layer) + 1) % width] +
                  static_cast<float>(layer);
    }
    values = turned;
  }
  return values;
}

// The width of layers that are kWeightsBytes together: large blocks of malloc,
// and small ones.
class OffloadCheckpointMemory : public testing::TestWithParam<int64_t> {};

TEST_P(OffloadCheckpointMemory, IsTheBudgetAndNotTheModel) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitiser's shadow is memory too";
#endif
  static_assert(kWeightsBytes > 2 * (kBudget + kBeside));
  const int64_t width = GetParam();
  const int64_t layers = kWeightsBytes / (4 * width * width);
  at::set_num_threads(1);
  TemporaryDirectory files, below;
  WriteFiles(files, width, layers);
  const c10::NoGradGuard guard;
  const at::Tensor input = at::arange(width, at::kFloat).view({1, width});
  {
    // What LibTorch and the library set up once.
    ::torch::nn::Linear first(width, width);
    EXPECT_EQ(first->forward(input).numel(), width);
  }
  malloc_trim(0);  // of the files' texts
  if (!ForgetPeak()) GTEST_SKIP() << "the peak cannot be reset here";
  const int64_t before = Memory("VmRSS");
  ::torch::nn::Sequential model;
  for (int64_t i = 0; i < layers; ++i) {
    model->push_back(::torch::nn::Linear(width, width));
    ASSERT_TRUE(MoveParametersToMeta(*model->ptr(static_cast<size_t>(i))).ok());
  }
  const int64_t made = Memory("VmHWM") - before;
  OffloadOptions options;
  options.memory_budget_bytes = kBudget;
  options.nvme_paths = {below.path()};
  options.checkpoint = files.path();
  options.threads = 1;
  auto offload = Offload::Create(*model, options);
  ASSERT_TRUE(offload.ok()) << offload.status();
  const int64_t loaded = Memory("VmHWM") - before;
  const at::Tensor answer = model->forward(input);
  const int64_t used = Memory("VmHWM") - before;
  std::printf("made in %.1f MiB, loaded in %.1f MiB, used in %.1f MiB\n",
              static_cast<double>(made) / (1 << 20),
              static_cast<double>(loaded) / (1 << 20),
              static_cast<double>(used) / (1 << 20));
  EXPECT_LE(made, kBeside);
  EXPECT_LE(loaded, kBudget + kBeside);
  EXPECT_LE(used, kBudget + kBeside);
  const float* const values = answer.const_data_ptr<float>();
  EXPECT_EQ(std::vector<float>(values, values + width),
            Expected(static_cast<size_t>(width), layers));
  EXPECT_LE((*offload)->stats().runtime.host.peak_bytes, kBudget);
  EXPECT_TRUE((*offload)->Close(Offload::AtClose::kRefuse).ok());
}

INSTANTIATE_TEST_SUITE_P(Widths, OffloadCheckpointMemory,
                         testing::Values(1024, 256));

}  // namespace
}  // namespace terrace
