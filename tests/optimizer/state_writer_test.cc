// A load through a StateWriter: over a runtime of plain memory, against the
// reference; what the optimizer is before, beside and after it.
#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "tests/optimizer/saving.h"
#include "tests/optimizer/training.h"

namespace terrace {
namespace {

using absl::IsFailedPrecondition;
using Kind = OffloadedOptimizer::StateKind;

absl::Span<const float> ValuesOf(const Saved& saved, int parameter, Kind kind,
                                 int64_t from, int64_t count) {
  const auto found = saved.arrays.find({parameter, kind});
  if (found == saved.arrays.end()) return {};
  return absl::MakeConstSpan(found->second)
      .subspan(static_cast<size_t>(from), static_cast<size_t>(count));
}

// All of it, in ranges of `range` elements.
void Write(const Saved& saved, int64_t range, StateWriter& writer,
           absl::Span<const ParameterSpec> specs) {
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto index = static_cast<int>(i);
    if (saved.steps[i] == 0) continue;
    for (int64_t from = 0; from < specs[i].count; from += range) {
      const int64_t count = std::min(range, specs[i].count - from);
      const absl::Status status = writer.Write(
          index, from,
          {ValuesOf(saved, index, Kind::kMaster, from, count),
           ValuesOf(saved, index, Kind::kFirstMoment, from, count),
           ValuesOf(saved, index, Kind::kSecondMoment, from, count)},
          Soon());
      ASSERT_TRUE(status.ok()) << status;
    }
  }
}

Training Of(uint64_t seed) {
  return Training(Model::Mixed(seed), SmallChunks(), 1,
                  {.budget_bytes = 300 << 10});
}

TEST(StateWriter, GivesTheBitsThatWereSavedInRangesOfAnySize) {
  Training training = Of(81);
  training.StepBoth(1);
  training.StepBoth(2);
  const Saved saved = Save(training.optimizer(), 100'000);
  OffloadedOptimizer& optimizer = training.optimizer();
  int64_t step = 2;
  for (const int64_t range : {1'009, 30'011, 1'000'000}) {
    SCOPED_TRACE(range);
    const Saved now = Save(optimizer, 100'000);
    auto writer = optimizer.OpenStateWriter(Soon());
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_EQ(optimizer.step(), 0);
    Write(now, range, **writer, optimizer.parameters());
    ASSERT_TRUE((*writer)->Commit(now.step, now.steps).ok());
    training.ExpectSameState();
    training.StepBoth(++step);
  }
}

TEST(StateWriter, FillsEachChunkInOneGo) {
  if (runtime_door != nullptr) GTEST_SKIP() << kNeedsMap;
  Training training = Of(82);
  training.StepBoth(1);
  OffloadedOptimizer& optimizer = training.optimizer();
  MapRuntime& runtime = training.map();
  const Saved saved = Save(optimizer, 100'000);
  const auto counts = [&] {
    std::vector<std::pair<int64_t, int64_t>> all;
    for (size_t i = 0; i < runtime.tensors().size(); ++i) {
      const TensorId tensor{static_cast<int64_t>(i)};
      all.emplace_back(runtime.reads(tensor), runtime.writes(tensor));
    }
    return all;
  };
  auto expected = counts();
  for (auto& [reads, writes] : expected) ++writes;
  auto writer = optimizer.OpenStateWriter(Soon());
  ASSERT_TRUE(writer.ok()) << writer.status();
  Write(saved, 5'003, **writer, optimizer.parameters());
  ASSERT_TRUE((*writer)->Commit(saved.step, saved.steps).ok());
  EXPECT_EQ(counts(), expected);
}

TEST(StateWriter, UntilItsCommitThereIsNoStateToUse) {
  Training training = Of(83);
  training.StepBoth(1);
  const Saved saved = Save(training.optimizer(), 100'000);
  OffloadedOptimizer& optimizer = training.optimizer();
  std::vector<float> one(1);
  const auto unusable = [&] {
    return IsFailedPrecondition(training.Step()) &&
           IsFailedPrecondition(optimizer.OpenStateReader().status()) &&
           IsFailedPrecondition(optimizer.ReadState(
               0, Kind::kFirstMoment, 0, absl::MakeSpan(one), Soon())) &&
           IsFailedPrecondition(
               optimizer.WriteState(0, Kind::kFirstMoment, 0, one, Soon())) &&
           IsFailedPrecondition(optimizer.SetSteps(saved.step, saved.steps));
  };
  training.model().DrawGradients(2);
  for (const bool healed_by_reset : {false, true}) {
    SCOPED_TRACE(healed_by_reset);
    {
      auto writer = optimizer.OpenStateWriter(Soon());
      ASSERT_TRUE(writer.ok()) << writer.status();
      ASSERT_TRUE((*writer)->Write(0, 0, {.first_moment = one}, Soon()).ok());
      EXPECT_TRUE(unusable());
      EXPECT_TRUE(
          IsFailedPrecondition(optimizer.OpenStateWriter(Soon()).status()));
      EXPECT_TRUE(IsFailedPrecondition(optimizer.Reset(Soon())));
      EXPECT_TRUE(IsFailedPrecondition(optimizer.AddParameters({{"x"}})));
    }
    EXPECT_TRUE(unusable());
    EXPECT_EQ(optimizer.step(), 0);
    if (healed_by_reset) {
      ASSERT_TRUE(optimizer.Reset(Soon()).ok());
      EXPECT_TRUE(optimizer.SetSteps(saved.step, saved.steps).ok());
    }
    auto writer = optimizer.OpenStateWriter(Soon());
    ASSERT_TRUE(writer.ok()) << writer.status();
    Write(saved, 100'000, **writer, optimizer.parameters());
    ASSERT_TRUE((*writer)->Commit(saved.step, saved.steps).ok());
    training.ExpectSameState();
  }
  training.StepBoth(2);
}

TEST(StateWriter, ReaderAndWriterExcludeEachOther) {
  Training training = Of(84);
  training.StepBoth(1);
  auto reader = training.optimizer().OpenStateReader();
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(IsFailedPrecondition(
      training.optimizer().OpenStateWriter(Soon()).status()));
  reader->reset();
  training.StepBoth(2);
}

TEST(StateWriter, CommitsOnlyWhatIsWhole) {
  Training training(
      Model::Of({{"a", DType::kBFloat16, 9'001}, {"b", DType::kFloat32, 11}},
                85),
      SmallChunks(), 1, {});
  OffloadedOptimizer& optimizer = training.optimizer();
  auto writer = optimizer.OpenStateWriter(Soon());
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::vector<float> all(9'001, 0.5f);
  const absl::Span<const float> some = absl::MakeConstSpan(all).first(9'000);
  const std::vector<int64_t> steps = {3, 0};
  EXPECT_TRUE(absl::IsInvalidArgument(
      (*writer)->Write(0, 0, {.master = all, .second_moment = some}, Soon())));
  EXPECT_TRUE(absl::IsInvalidArgument(
      (*writer)->Write(1, 0, {.master = some.first(11)}, Soon())));
  EXPECT_TRUE(absl::IsInvalidArgument((*writer)->Write(2, 0, {}, Soon())));
  EXPECT_TRUE(
      IsFailedPrecondition((*writer)->Write(0, 1, {.master = some}, Soon())));
  ASSERT_TRUE((*writer)->Write(0, 0, {.master = some}, Soon()).ok());
  EXPECT_TRUE(IsFailedPrecondition((*writer)->Commit(3, steps)));
  ASSERT_TRUE(
      (*writer)->Write(0, 9'000, {.master = some.first(1)}, Soon()).ok());
  EXPECT_TRUE(absl::IsInvalidArgument((*writer)->Commit(3, {})));
  EXPECT_TRUE(absl::IsInvalidArgument((*writer)->Commit(-1, steps)));
  EXPECT_TRUE(IsFailedPrecondition(training.Step()));
  ASSERT_TRUE((*writer)->Commit(3, steps).ok());
  EXPECT_EQ(optimizer.step(), 3);
  EXPECT_TRUE(IsFailedPrecondition((*writer)->Commit(3, steps)));
  EXPECT_TRUE(
      IsFailedPrecondition((*writer)->Write(0, 0, {.master = all}, Soon())));
  std::vector<float> read(9'001);
  ASSERT_TRUE(
      optimizer.ReadState(0, Kind::kMaster, absl::MakeSpan(read), Soon()).ok());
  EXPECT_EQ(read, all);
}

}  // namespace
}  // namespace terrace
