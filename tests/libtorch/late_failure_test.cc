// Updates that fail after their step has returned: who is told, and what brings
// them to the bits of the undisturbed, or gives them up.
#include <torch/serialize/archive.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/step/late/update_net.h"
#include "tests/libtorch/late_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

void ExpectEio(const absl::Status& status) {
  EXPECT_TRUE(absl::IsUnknown(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("path 1: EIO"));
}

// One step that is whole and one whose updates fail, from some call on.
void FailSecondStep(Trained& late, int64_t call = 3) {
  ASSERT_TRUE(late.Step(1).ok());
  ASSERT_TRUE(late.optimizer().Flush().ok());
  late.Fail(call);
  ASSERT_TRUE(late.Step(2).ok());
}

// What steps that block leave.
std::unique_ptr<Trained> After(int steps, at::ScalarType dtype = at::kFloat) {
  auto blocking = std::make_unique<Trained>(false, dtype);
  for (int step = 1; step <= steps; ++step) {
    EXPECT_TRUE(blocking->Step(step).ok());
  }
  return blocking;
}

TEST(LateFailure, FlushTellsItOnceAndThenTriesAgainToTheSameBits) {
  int64_t failures = 0;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto expected = After(3, dtype);
    for (int64_t call = 0;; ++call) {
      SCOPED_TRACE(absl::StrCat(toString(dtype), ", call ", call));
      Trained late(true, dtype);
      FailSecondStep(late, call);
      const absl::Status told = late.optimizer().Flush();
      if (told.ok()) break;
      ++failures;
      ExpectEio(told);
      EXPECT_TRUE(late.optimizer().offloaded().incomplete());
      // The gradients of the step are held, whatever becomes of .grad.
      late.optimizer().zero_grad();
      ExpectEio(late.optimizer().Flush());  // fails again
      late.Mend();
      absl::Status again = late.optimizer().Flush();
      ASSERT_TRUE(again.ok()) << again;
      ASSERT_TRUE(late.Step(3).ok());
      late.ExpectParametersOf(*expected);
      late.ExpectStateOf(*expected);
      for (const at::Tensor& parameter : late.parameters()) {
        static_cast<void>(parameter.data_ptr());  // throws if it is refused
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GE(failures, 2 * 10);
  EXPECT_TRUE(UpdateNet::Get().pending().empty());
}

TEST(LateFailure, TheNextStepTellsItAndTheOneAfterThatMakesBoth) {
  const auto expected = After(3);
  for (const bool overlap : {true, false}) {
    Trained late(true);
    FailSecondStep(late);
    late.Draw(3);
    late.optimizer().set_overlap(overlap);
    ExpectEio(late.optimizer().TryStep());
    ExpectEio(late.optimizer().TryStep());
    late.Mend();
    ASSERT_TRUE(late.optimizer().TryStep().ok());
    late.ExpectParametersOf(*expected);
    late.ExpectStateOf(*expected);
  }
}

TEST(LateFailure, StepThrowsTheStatusesText) {
  Trained late(true);
  FailSecondStep(late);
  try {
    late.optimizer().step();
    FAIL() << "no exception";
  } catch (const c10::Error& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("path 1: EIO"));
  }
  late.Mend();
  ASSERT_TRUE(late.optimizer().Flush().ok());
  late.ExpectParametersOf(*After(2));
}

TEST(LateFailure, OperationsThrowUntilItIsMended) {
  const auto expected = After(2);
  Trained late(true);
  FailSecondStep(late);
  ExpectEio(late.optimizer().Flush());
  int thrown = 0;
  for (size_t i = 0; i < late.parameters().size(); ++i) {
    const std::string said = WhatThrows(late.parameters()[i]);
    if (said.empty()) continue;
    ++thrown;
    EXPECT_THAT(said, HasSubstr(absl::StrCat("terrace: parameter '", i, "'")));
    EXPECT_THAT(said, HasSubstr("path 1: EIO"));
  }
  EXPECT_GT(thrown, 0);
  late.Mend();
  ASSERT_TRUE(late.optimizer().Flush().ok());
  late.ExpectParametersOf(*expected);
}

TEST(LateFailure, LooksAtTheStateTellItAgainAndAgain) {
  Trained late(true);
  FailSecondStep(late);
  for (int i = 0; i < 2; ++i) {
    ExpectEio(late.optimizer().StateOf(late.parameters()[0]).status());
    try {
      static_cast<void>(late.Save());
      FAIL() << "no exception";
    } catch (const c10::Error& error) {
      EXPECT_THAT(std::string(error.what()), HasSubstr("path 1: EIO"));
    }
  }
  late.Mend();
  ASSERT_TRUE(late.optimizer().Flush().ok());
  late.ExpectStateOf(*After(2));
}

TEST(LateFailure, AnAttemptThatIsNotThroughAtTheDeadlineIsTakenUpAgain) {
  const auto expected = After(2);
  Trained late(true);
  FailSecondStep(late);
  ExpectEio(late.optimizer().Flush());
  late.Mend();
  late.runtime().set_stalled(true);
  for (const absl::Time deadline :
       {absl::InfinitePast(), absl::Now() + absl::Milliseconds(20)}) {
    const absl::Status status = late.optimizer().Flush(deadline);
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  }
  late.runtime().set_stalled(false);
  ASSERT_TRUE(late.optimizer().Flush().ok());
  late.ExpectParametersOf(*expected);
  late.ExpectStateOf(*expected);
}

TEST(LateFailure, UpdatesEndAtTheStepsTimeOut) {
  const auto expected = After(1);
  Trained late(true);
  late.optimizer().set_step_timeout(absl::Milliseconds(300));
  late.runtime().set_stalled(true);
  ASSERT_TRUE(late.Step(1).ok());
  absl::Status status = late.optimizer().Flush();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("chunks are missing"));
  late.runtime().set_stalled(false);
  for (int i = 0; i < 100 && !status.ok(); ++i) {
    status = late.optimizer().Flush();
  }
  ASSERT_TRUE(status.ok()) << status;
  late.ExpectParametersOf(*expected);
}

TEST(LateFailure, ALoadGivesItUp) {
  const auto one = After(1);
  const std::string saved = one->Save();
  Trained late(true);
  FailSecondStep(late);
  ExpectEio(late.optimizer().Flush());
  EXPECT_NE(WhatThrows(late.parameters()[6]), "");
  // What does not fit changes nothing.
  const std::vector<at::Tensor> few = {at::ones({3}).set_requires_grad(true)};
  const auto runtime = MakeRuntime();
  auto other = *OffloadedAdamW::Create(*runtime, few, SmallChunks());
  ::torch::serialize::OutputArchive archive;
  other->save(archive);
  std::stringstream stream;
  archive.save_to(stream);
  EXPECT_THROW(late.Load(stream.str()), c10::Error);
  ExpectEio(late.optimizer().Flush());
  late.Mend();
  late.Load(saved);
  ASSERT_TRUE(late.optimizer().Flush().ok());
  late.ExpectStateOf(*one);
  EXPECT_TRUE(UpdateNet::Get().pending().empty());
  {
    const at::NoGradGuard without_graph;
    for (size_t i = 0; i < late.parameters().size(); ++i) {
      EXPECT_EQ(WhatThrows(late.parameters()[i]), "") << i;
      late.parameters()[i].copy_(one->parameters()[i]);
    }
  }
  ASSERT_TRUE(late.Step(2).ok());
  ASSERT_TRUE(one->Step(2).ok());
  late.ExpectParametersOf(*one);
}

TEST(LateFailure, AResetOfWhatIsBehindGivesItUp) {
  Trained late(true);
  FailSecondStep(late);
  ExpectEio(late.optimizer().Flush());
  EXPECT_NE(WhatThrows(late.parameters()[6]), "");
  late.Mend();
  ASSERT_TRUE(
      late.optimizer().offloaded().Reset(absl::Now() + absl::Minutes(1)).ok());
  ASSERT_TRUE(late.optimizer().Flush().ok());
  EXPECT_EQ(WhatThrows(late.parameters()[6]), "");
  const auto state = late.optimizer().StateOf(late.parameters()[6]);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->step, 0);
  ASSERT_TRUE(late.Step(3).ok());
  EXPECT_TRUE(late.optimizer().Flush().ok());
}

TEST(LateFailure, TheOptimizersEndGivesItUp) {
  Trained late(true);
  FailSecondStep(late);
  ExpectEio(late.optimizer().Flush());
  EXPECT_NE(WhatThrows(late.parameters()[6]), "");
  late.DestroyOptimizer();
  for (const at::Tensor& parameter : late.parameters()) {
    EXPECT_EQ(WhatThrows(parameter), "");
  }
  EXPECT_TRUE(UpdateNet::Get().pending().empty());
}

TEST(LateFailure, AStepThatIsIncompleteIsFinishedWithinTheCall) {
  const auto expected = After(2);
  Trained late(false);
  ASSERT_TRUE(late.Step(1).ok());
  late.Fail(3);
  ExpectEio(late.Step(2));
  late.Mend();
  late.optimizer().set_overlap(true);
  ASSERT_TRUE(late.Step(2).ok());
  EXPECT_TRUE(UpdateNet::Get().pending().empty());
  late.ExpectParametersOf(*expected);
  late.ExpectStateOf(*expected);
}

TEST(LateFailure, DataLossStays) {
  Trained late(true);
  ASSERT_TRUE(late.Step(1).ok());
  ASSERT_TRUE(late.optimizer().Flush().ok());
  late.runtime().set_fault([](const MapRuntime::Call& call) {
    return call.kind == MapRuntime::CallKind::kReady
               ? absl::DataLossError("path 0: checksum")
               : absl::OkStatus();
  });
  ASSERT_TRUE(late.Step(2).ok());
  const absl::Status told = late.optimizer().Flush();
  EXPECT_TRUE(absl::IsDataLoss(told)) << told;
  late.Mend();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(late.optimizer().Flush(), told);
    EXPECT_EQ(late.optimizer().TryStep(), told);
    EXPECT_EQ(late.optimizer().StateOf(late.parameters()[0]).status(), told);
  }
}

}  // namespace
}  // namespace terrace
