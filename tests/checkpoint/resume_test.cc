// A resumed run is the run that went on, bit for bit, whatever it is resumed
// on; compared with a serial scalar loop over plain vectors.
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

constexpr EngineKind kUring = EngineKind::kUring;
constexpr EngineKind kThreads = EngineKind::kThreads;
constexpr EngineKind kAuto = EngineKind::kAuto;
constexpr int64_t kKiB = 1 << 10;

constexpr Arrangement kArrangements[] = {
    {"SmallMemory", kAuto, false, 1, 256 * kKiB, 64 * kKiB},
    {"TwoMemory", kAuto, false, 2, 400 * kKiB, 100 * kKiB},
    {"AllInMemory", kAuto, false, 1, 16384 * kKiB, 8192 * kKiB},
    {"Ring", kUring, true, 1, 512 * kKiB, 64 * kKiB},
    {"ThreeRings", kUring, true, 3, 300 * kKiB, 68 * kKiB},
    {"Threads", kThreads, true, 2, 350 * kKiB, 80 * kKiB},
};

// Models of every dtype: 850 KB of state.
Model ModelOf(int kind, uint64_t seed) {
  if (kind == 0) return Model::Mixed(seed);
  const DType dtype = kind == 1   ? DType::kFloat32
                      : kind == 2 ? DType::kBFloat16
                                  : DType::kFloat16;
  return Model::Of({{"embedding.weight", dtype, 50021},
                    {"bias", dtype, 1},
                    {"empty", dtype, 0},
                    {"block.0.weight", dtype, 16384},
                    {"block.1.weight", dtype, 9973}},
                   seed);
}

class Resume : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(Resume, EqualsTheUninterruptedRunBitForBit) {
  const auto [index, kind] = GetParam();
  const Arrangement& from = kArrangements[index];
  OptimizerOptions options;
  options.max_gradient_norm = 1;
  const uint64_t seed = 80 + static_cast<uint64_t>(kind);
  TemporaryDirectory directory;
  ReferenceOptimizer reference(ModelOf(kind, seed), options);
  {
    Job job(ModelOf(kind, seed), from, options);
    ASSERT_TRUE(job.ok());
    job.model().parameters()[3].has_gradient = false;  // no state at the save
    for (int step = 1; step <= 3; ++step) {
      job.Step(step);
      reference.Step({}, job.model());
    }
    ASSERT_EQ(reference.Difference(job.model()), "");
    const absl::Status saved = job.Save(directory.path());
    ASSERT_TRUE(saved.ok()) << saved;
  }
  // On each of the others, and where it came from.
  for (const Arrangement& to : kArrangements) {
    SCOPED_TRACE(to.name);
    ReferenceOptimizer continued = reference;
    // Its first values are drawn from another seed than those saved.
    Job job(ModelOf(kind, seed + 1000), to, options);
    ASSERT_TRUE(job.ok());
    const absl::Status loaded = job.Load(directory.path());
    ASSERT_TRUE(loaded.ok()) << loaded;
    EXPECT_EQ(continued.Difference(job.model()), "");
    EXPECT_EQ(continued.StateDifference(job.optimizer()), "");
    for (int step = 4; step <= 5; ++step) {
      job.Step(step);
      continued.Step({}, job.model());
      EXPECT_EQ(continued.Difference(job.model()), "") << "step " << step;
    }
    EXPECT_EQ(continued.StateDifference(job.optimizer()), "");
    EXPECT_EQ(job.optimizer().step(), 5);
    EXPECT_THAT(job.optimizer().parameter_steps(),
                testing::ElementsAreArray(continued.parameter_steps()));
  }
}

std::string NameOf(const testing::TestParamInfo<std::tuple<int, int>>& test) {
  const char* const kinds[] = {"Mixed", "Fp32", "Bf16", "Fp16"};
  return std::string(kArrangements[std::get<0>(test.param)].name) +
         kinds[std::get<1>(test.param)];
}

INSTANTIATE_TEST_SUITE_P(Arrangements, Resume,
                         testing::Combine(testing::Range(0, 6),
                                          testing::Range(0, 4)),
                         NameOf);

TEST(ResumeTwice, FromACheckpointOfAResumedRun) {
  TemporaryDirectory directory;
  ReferenceOptimizer reference(Model::Mixed(7), {});
  for (int step = 1; step <= 5; ++step) {
    Job job(Model::Mixed(7), kArrangements[step]);
    ASSERT_TRUE(job.ok());
    if (step > 1) {
      const absl::Status loaded = job.Load(directory.path());
      ASSERT_TRUE(loaded.ok()) << loaded;
    }
    job.Step(step);
    reference.Step({}, job.model());
    const absl::Status saved = job.Save(directory.path());
    ASSERT_TRUE(saved.ok()) << saved;
    EXPECT_EQ(reference.Difference(job.model()), "");
    EXPECT_EQ(reference.StateDifference(job.optimizer()), "");
    EXPECT_THAT(directory.Entries(), testing::SizeIs(3));
  }
}

TEST(ResumeWithoutAMaster, IsMadeFromTheParameterAsInTheRunThatWentOn) {
  // Moments without a master, as from another optimizer's state.
  const Model model = Model::Of({{"half", DType::kBFloat16, 20011}}, 5);
  const std::vector<float> m(20011, 0.01f), v(20011, 0.0004f);
  using Kind = OffloadedOptimizer::StateKind;
  Job job(model, kArrangements[0]);
  ASSERT_TRUE(job.ok());
  OffloadedOptimizer& optimizer = job.optimizer();
  ASSERT_TRUE(
      optimizer.WriteState(0, Kind::kFirstMoment, 0, m, InAMinute()).ok());
  ASSERT_TRUE(
      optimizer.WriteState(0, Kind::kSecondMoment, 0, v, InAMinute()).ok());
  ASSERT_TRUE(optimizer.SetSteps(7, {7}).ok());
  TemporaryDirectory directory;
  const absl::Status saved = job.Save(directory.path());
  ASSERT_TRUE(saved.ok()) << saved;
  Job resumed(model, kArrangements[1]);
  ASSERT_TRUE(resumed.ok());
  const absl::Status loaded = resumed.Load(directory.path());
  ASSERT_TRUE(loaded.ok()) << loaded;
  job.Step(8);
  resumed.Step(8);
  EXPECT_TRUE(job.model().parameters()[0].values.SameBits(
      resumed.model().parameters()[0].values));
  std::vector<float> expected(20011), got(20011);
  for (const Kind kind :
       {Kind::kMaster, Kind::kFirstMoment, Kind::kSecondMoment}) {
    ASSERT_TRUE(
        optimizer.ReadState(0, kind, absl::MakeSpan(expected), InAMinute())
            .ok());
    ASSERT_TRUE(resumed.optimizer()
                    .ReadState(0, kind, absl::MakeSpan(got), InAMinute())
                    .ok());
    EXPECT_EQ(expected, got);
  }
}

}  // namespace
}  // namespace terrace
