// The state of one parameter is forgotten, and no other.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/optimizer.h"
#include "tests/optimizer/training.h"

namespace terrace {
namespace {

using StateKind = OffloadedOptimizer::StateKind;

TEST(ForgottenState, OfSomeBeginsAnewAndTheOthersGoOn) {
  for (const int64_t budget : {512 << 10, 8 << 20}) {
    Training training(Model::Mixed(67), SmallChunks(), 2,
                      {.budget_bytes = budget, .seed = 67});
    const auto forget = [&](int parameter) {
      const absl::Status status = training.optimizer().ForgetState(parameter);
      EXPECT_TRUE(status.ok()) << status;
      training.reference().Forget(static_cast<size_t>(parameter));
    };
    forget(1);  // which has none yet
    for (int step = 1; step <= 6; ++step) {
      training.StepBoth(step);
      training.ExpectSameState();
      forget(step);
      if (step > 3) forget(0);
      training.ExpectSameState();
      const auto& spec =
          training.model().parameters()[static_cast<size_t>(step)].spec;
      EXPECT_EQ(training.optimizer().HasState(step, StateKind::kFirstMoment),
                spec.count == 0);
      // Written anew before it is stepped, too.
      if (step != 4) continue;
      const auto count = training.model().parameters()[4].spec.count;
      const std::vector<float> ones(static_cast<size_t>(count), 1);
      for (const StateKind kind :
           {StateKind::kFirstMoment, StateKind::kSecondMoment}) {
        ASSERT_TRUE(
            training.optimizer().WriteState(4, kind, 0, ones, Soon()).ok());
      }
      forget(4);
    }
  }
}

TEST(ForgottenState, IsRefusedWhereStateIsRefused) {
  Training training(Model::Mixed(68), SmallChunks(), 1,
                    {.budget_bytes = 1 << 20});
  training.StepBoth(1);
  OffloadedOptimizer& optimizer = training.optimizer();
  EXPECT_TRUE(absl::IsInvalidArgument(optimizer.ForgetState(-1)));
  EXPECT_TRUE(absl::IsInvalidArgument(optimizer.ForgetState(1000)));
  {
    const auto reader = optimizer.OpenStateReader();
    ASSERT_TRUE(reader.ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(optimizer.ForgetState(0)));
  }
  training.ExpectSameState();
}

}  // namespace
}  // namespace terrace
