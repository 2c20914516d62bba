// The settings as Terrace's own options, and what the machine says to them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "terrace/machine.h"
#include "terrace/runtime.h"
#include "tests/support/temporary_directory.h"
#include "tests/zero_config/key_rows.h"

namespace terrace::zero_config_test {
namespace {

const std::vector<ParameterSpec> kParameters = {
    {"a", DType::kFloat32, 3'000'000}, {"b", DType::kFloat32, 1'000'003}};
constexpr int64_t kState = 8 * 4'000'003;

std::string Members(const std::string& zero) {
  return "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, "
         "\"weight_decay\": 0.5}}, \"gradient_clipping\": 2, "
         "\"zero_optimization\": {" +
         zero + "}";
}

std::string Nvme(const std::string& path, const std::string& more = "") {
  return Members(more +
                 "\"offload_optimizer\": {\"device\": \"nvme\", "
                 "\"nvme_path\": \"" +
                 path + "\"}");
}

absl::StatusOr<ZeroConfigOptions> Options(const std::string& members,
                                          int64_t budget_bytes = 0) {
  const auto settings = ReadMembers(members);
  if (!settings.ok()) return settings.status();
  return OptionsFromZeroConfig(*settings, kParameters, budget_bytes);
}

TEST(Options, CarryTheOptimizersSettings) {
  const auto options = Options(Members("\"stage\": 1"));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->optimizer.adam.learning_rate, 0.01);
  EXPECT_EQ(options->optimizer.adam.weight_decay, 0.5);
  EXPECT_EQ(options->optimizer.max_gradient_norm, 2);
  EXPECT_FALSE(options->optimizer.skip_nonfinite);
  EXPECT_TRUE(options->runtime.paths.empty());
}

TEST(Options, WithoutNvmeTheWholeStateFitsTheBudget) {
  for (const char* zero :
       {"", "\"offload_optimizer\": {\"device\": \"cpu\"}"}) {
    const auto options = Options(Members(zero));
    ASSERT_TRUE(options.ok()) << options.status();
    const auto plan = OffloadedOptimizer::Plan(
        kParameters, options->optimizer, options->runtime.host_budget_bytes);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_GE(options->runtime.host_budget_bytes,
              plan->disk_bytes + plan->window_bytes);
    EXPECT_LE(options->runtime.host_budget_bytes, kState + (5 << 20));
  }
}

// As many steps as given, in a Runtime of these options.
void Step(const ZeroConfigOptions& options, int steps) {
  auto runtime = Runtime::Create(options.runtime);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  auto optimizer =
      OffloadedOptimizer::Create(**runtime, kParameters, options.optimizer);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  std::vector<std::vector<float>> parameters, gradients;
  std::vector<ParameterData> data;
  for (const ParameterSpec& spec : kParameters) {
    const auto count = static_cast<size_t>(spec.count);
    parameters.emplace_back(count, 1.0f);
    gradients.emplace_back(count, 1e-3f);
    data.push_back({parameters.back().data(), gradients.back().data()});
  }
  for (int step = 1; step <= steps; ++step) {
    const absl::Status status =
        (*optimizer)->Step({}, data, absl::InfiniteFuture());
    ASSERT_TRUE(status.ok()) << status;
  }
  // AdamW with a constant gradient: -lr * sign(g) a step, after the decay.
  double want = 1.0;
  for (int step = 0; step < steps; ++step) want = want * (1 - 0.005) - 0.01;
  EXPECT_NEAR(parameters[1].back(), want, 1e-5);
  optimizer->reset();
  EXPECT_TRUE((*runtime)->Close(absl::InfiniteFuture()).ok());
}

TEST(Options, WithoutNvmeTheyTrainInMemory) {
  const auto options = Options(Members(""));
  ASSERT_TRUE(options.ok()) << options.status();
  const auto notes = CheckZeroConfigResources(*options, kParameters);
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_TRUE(notes->empty());
  Step(*options, 3);
}

TEST(Options, WithNvmeTheyTrainFromDisk) {
  const TemporaryDirectory folder;
  const auto options = Options(Nvme(folder.path()));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->runtime.paths, std::vector<std::string>{folder.path()});
  EXPECT_EQ(options->runtime.host_budget_bytes, kState / 10);
  ASSERT_TRUE(CheckZeroConfigResources(*options, kParameters).ok());
  // The probe leaves nothing behind.
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  Step(*options, 3);
}

TEST(Options, ABudgetIsTakenAsGivenOrRefused) {
  const TemporaryDirectory folder;
  EXPECT_EQ(Options(Nvme(folder.path()), 8 << 20)->runtime.host_budget_bytes,
            8 << 20);
  const auto little = Options(Nvme(folder.path()), 4096);
  EXPECT_EQ(little.status().code(), absl::StatusCode::kResourceExhausted);
  const auto negative = Options(Nvme(folder.path()), -1);
  EXPECT_EQ(negative.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Options, SubGroupsBoundTheChunks) {
  const auto chunk = [](const char* size) {
    return Options(Members(absl::StrCat("\"sub_group_size\": ", size)))
        ->optimizer.chunk_bytes;
  };
  EXPECT_EQ(Options(Members(""))->optimizer.chunk_bytes, 8 << 20);
  EXPECT_EQ(chunk("1e9"), 8 << 20);
  EXPECT_EQ(chunk("100000"), 100000 * 8 + 4096);
  EXPECT_EQ(chunk("0"), 64 << 10);
}

TEST(Options, AShareOfTheCoresBoundsTheThreads) {
  const auto threads = [](const char* share) {
    return Options(Members(absl::StrCat(
                       "\"offload_optimizer\": {\"device\": \"cpu\", "
                       "\"cpuadam_cores_perc\": ",
                       share, "}")))
        ->runtime.threads;
  };
  EXPECT_EQ(threads("0"), 1);
  EXPECT_EQ(threads("1"), 0);  // every core
  EXPECT_GE(threads("0.5"), 1);
}

TEST(Options, NeedAnOptimizerAndTheModelsType) {
  const auto none = Options("\"steps_per_print\": 1");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(none.status().message(), "optimizer"));
  const auto bf16 = Options(Members("") + ", \"bf16\": {\"enabled\": true}");
  EXPECT_EQ(bf16.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(bf16.status().message(), "parameter 'a'"));
}

// Its message names the key and the path.
void ExpectRefused(const std::string& path, absl::StatusCode code,
                   const char* part) {
  SCOPED_TRACE(path);
  const auto options = Options(Nvme(path));
  ASSERT_TRUE(options.ok()) << options.status();
  const auto notes = CheckZeroConfigResources(*options, kParameters);
  EXPECT_EQ(notes.status().code(), code) << notes.status();
  const std::string message(notes.status().message());
  EXPECT_TRUE(absl::StrContains(
      message, "zero_optimization.offload_optimizer.nvme_path"))
      << message;
  EXPECT_TRUE(absl::StrContains(message, path)) << message;
  EXPECT_TRUE(absl::StrContains(message, part)) << message;
}

TEST(Resources, AWrongPathIsFoundBeforeTheFirstByte) {
  const TemporaryDirectory folder;
  const std::string absent = folder.path() + "/typo/deeper";
  ExpectRefused(absent, absl::StatusCode::kNotFound, "");
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/typo"));
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ExpectRefused(pipe, absl::StatusCode::kInvalidArgument, "");
}

TEST(Resources, AReadOnlyPathIsFoundBeforeTheFirstByte) {
  // What even the superuser cannot write to.
  ExpectRefused("/proc", absl::StatusCode::kPermissionDenied,
                "cannot be written");
}

TEST(Resources, ATooSmallDiskNamesNeedAndRoom) {
  const TemporaryDirectory folder;
  const auto settings = ReadMembers(Nvme(folder.path()));
  ASSERT_TRUE(settings.ok());
  const auto free = FreeDiskBytes(folder.path());
  ASSERT_TRUE(free.ok());
  const std::vector<ParameterSpec> large = {
      {"huge", DType::kFloat32, *free / 8 + (1 << 20)}};
  const auto options = OptionsFromZeroConfig(*settings, large, 64 << 20);
  ASSERT_TRUE(options.ok()) << options.status();
  const auto notes = CheckZeroConfigResources(*options, large);
  ASSERT_EQ(notes.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(notes.status().message(), "are free"))
      << notes.status();
}

TEST(Resources, TooLittleMemoryNamesTheSumByKind) {
  const int64_t available = AvailableMemoryBytes();
  const TemporaryDirectory folder;
  auto options = Options(Nvme(folder.path()), 64 << 20);
  ASSERT_TRUE(options.ok());
  options->runtime.host_budget_bytes = available + (int64_t{1} << 40);
  const auto more = CheckZeroConfigResources(*options, kParameters);
  ASSERT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(more.status().message(), "for transfers"));
  EXPECT_TRUE(absl::StrContains(more.status().message(), "state that stays"));
  // No path, and a budget that is less than the state.
  auto memory = Options(Members(""), 8 << 20);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto less = CheckZeroConfigResources(*memory, kParameters);
  EXPECT_EQ(less.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(less.status().message(), "no nvme_path"));
}

TEST(Resources, APathWithoutDirectIoIsNoted) {
  const char* shm = "/dev/shm";
  struct statvfs info;
  if (access(shm, W_OK) != 0 || statvfs(shm, &info) != 0) {
    GTEST_SKIP() << shm << " cannot be written";
  }
  const std::string probe = absl::StrCat(shm, "/terrace-direct-", getpid());
  const int file = open(probe.c_str(), O_CREAT | O_RDWR | O_DIRECT, 0600);
  const bool direct = file >= 0;
  if (direct) close(file);
  unlink(probe.c_str());
  const auto options = Options(Nvme(shm));
  ASSERT_TRUE(options.ok()) << options.status();
  const auto notes = CheckZeroConfigResources(*options, kParameters);
  if (notes.status().code() == absl::StatusCode::kResourceExhausted) {
    GTEST_SKIP() << notes.status();
  }
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_EQ(notes->size(), direct ? 0u : 1u);
}

}  // namespace
}  // namespace terrace::zero_config_test
