// Disks that are full, or fail otherwise, as saved activations leave and come
// back: the operation ends, what it was part of can be done again, and that
// gives the gradients of plain memory.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/io_fault.h"
#include "tests/libtorch/offload/activations_fixture.h"
#include "tests/libtorch/offload/sweep/faulty_tiers.h"
#include "tests/libtorch/offload/sweep/swept_faults.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr absl::Duration kShortTimeout = absl::Milliseconds(150);

class FaultyActivations : public ActivationsTest {
 protected:
  FaultyActivations() : FaultyActivations(FaultyTiersOptions()) {}
  explicit FaultyActivations(const FaultyTiersOptions& options)
      : tiers_(options) {}
  ~FaultyActivations() override {
    tiers_.faults().Clear();
    offload_.reset();  // before what it lives in
  }

  // Forward and backward of a step; what they throw.
  std::string Pass(int64_t seed) {
    offload_->BeginStep();
    model_->zero_grad();
    return ThrownBy([&] { Below(seed).backward(); });
  }
  void ExpectPass(int64_t seed, int most_tries = 1) {
    std::string thrown = Pass(seed);
    for (int tries = 1; !thrown.empty() && tries < most_tries; ++tries) {
      thrown = Pass(seed);
    }
    EXPECT_EQ(thrown, "");
    ExpectGradientsOf(seed);
  }
  // Soon: a thread that gives one's room back may have the last reference.
  void ExpectNoneManaged() {
    const absl::Time end = absl::Now() + OnThisMachine(absl::Seconds(10));
    while (offload_->stats().hook.managed_tensors > 0 && absl::Now() < end) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(offload_->stats().hook.managed_tensors, 0);
  }
  void ExpectGradientsOf(int64_t seed) {
    plain_->zero_grad();
    Plain(seed).backward();
    ExpectSameGradients();
    ExpectNoneManaged();
  }
  // Unavailable: the next one has no path left.
  void ExpectFull(const absl::Status& error) {
    EXPECT_TRUE(absl::IsResourceExhausted(error) || absl::IsUnavailable(error))
        << error;
    EXPECT_EQ(IoFaultOf(error).error, ENOSPC) << error;
    EXPECT_EQ(IoFaultOf(error).path, "memory:0") << error;
  }
  void Mend() { EXPECT_TRUE(tiers_.Mend(offload_->runtime())); }

  FaultyTiers tiers_;
};

TEST_F(FaultyActivations, OneThatCannotBeWrittenAsItLeavesEndsForward) {
  Make(Alone());
  ExpectPass(1);
  ASSERT_GT(Saved().evicted_bytes, 0);
  offload_->BeginStep();
  tiers_.faults().FailAll({.kind = FaultKind::kError, .error = ENOSPC},
                          kWrites);
  EXPECT_THAT(ThrownBy([&] { Below(2); }),
              AllOf(StartsWith("terrace: 'activation "), HasSubstr("ENOSPC"),
                    HasSubstr("memory:0, offset ")));
  ExpectFull(offload_->error());
  // The graph is gone, and what it had is free.
  ExpectNoneManaged();
  EXPECT_EQ(UsedBelow(), 0);
  // What has room in memory needs no disk.
  model_->zero_grad();
  plain_->zero_grad();
  Below(3, /*rows=*/16).backward();
  Plain(3, /*rows=*/16).backward();
  ExpectSameGradients();
  Mend();
  ExpectPass(2);
}

TEST_F(FaultyActivations, OneForWhichTheFileCannotGrowEndsForward) {
  Make(Alone());
  offload_->BeginStep();
  tiers_.disk().Fill();
  EXPECT_THAT(ThrownBy([&] { Below(1); }),
              AllOf(StartsWith("terrace: 'activation 0 of step 1' 32 KiB: "),
                    HasSubstr("cannot preallocate"), HasSubstr("ENOSPC")));
  EXPECT_TRUE(absl::IsResourceExhausted(offload_->error()));
  ExpectNoneManaged();
  Mend();
  ExpectPass(1);
}

TEST_F(FaultyActivations, ADiskThatIsFullByTheEndKeepsNoneFromBeingRestored) {
  Make(Alone());
  const at::Tensor loss = Below(1);
  ASSERT_GT(Saved().evicted_bytes, 0);
  tiers_.faults().FailAll({.kind = FaultKind::kError, .error = ENOSPC},
                          kWrites);
  const absl::Status closed = offload_->Close(Offload::AtClose::kRestore);
  EXPECT_TRUE(closed.ok()) << closed;
  loss.backward();
  Plain(1).backward();
  ExpectSameGradients();
}

class ActivationsSweep : public FaultyActivations,
                         public testing::WithParamInterface<SweptFault> {
 protected:
  ActivationsSweep()
      : FaultyActivations(
            {.io_timeout = OnThisMachine(is_hurried() ? kShortTimeout
                                                      : absl::Seconds(60))}) {}

  static bool is_hurried() {
    return GetParam().fault.kind == FaultKind::kNever;
  }
  // A busy machine is late with what is healthy, too.
  static int most_tries() { return is_hurried() ? 20 : 1; }
  void Aim(int64_t call) {
    FaultPlan& faults = tiers_.faults();
    const auto& [name, filter, fault, lasts, code, cause] = GetParam();
    faults.Clear();
    if (lasts == Lasts::kPlace) {
      faults.FailPlace(call, fault, filter);
    } else {
      faults.FailCall(call, fault, filter,
                      lasts == Lasts::kOn ? INT64_MAX / 2 : 1);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Faults, ActivationsSweep, testing::ValuesIn(kFaults),
                         [](const auto& chosen) {
                           return std::string(chosen.param.name);
                         });

TEST_P(ActivationsSweep, EachCallOfAStepInTurn) {
  OffloadOptions options = Alone();
  if (is_hurried()) options.patience = OnThisMachine(absl::Seconds(1));
  Make(options);
  ExpectPass(1, most_tries());
  tiers_.faults().Clear();
  ExpectPass(1, most_tries());
  const int64_t calls = tiers_.faults().calls(GetParam().filter);
  ASSERT_GT(calls, 4);
  int64_t hit = 0, thrown = 0;
  const int64_t stride =
      TakesAll() ? 1 : std::max<int64_t>(1, calls / (is_hurried() ? 3 : 6));
  for (int64_t call = 1; call <= calls && !HasFailure(); call += stride) {
    SCOPED_TRACE(absl::StrCat("call ", call, " of ", calls));
    Aim(call);
    std::string text = Pass(call);
    hit += tiers_.faults().faults() > 0 ? 1 : 0;
    for (int tries = 0; !text.empty(); ++tries) {
      ++thrown;
      EXPECT_NE(GetParam().code, absl::StatusCode::kOk) << text;
      EXPECT_THAT(text, StartsWith("terrace: 'activation "));
      if (!is_hurried()) {
        EXPECT_THAT(text, AllOf(HasSubstr("memory:0, offset "),
                                HasSubstr(GetParam().cause)));
      }
      EXPECT_FALSE(offload_->error().ok());
      ExpectNoneManaged();
      Mend();
      ASSERT_LT(tries, most_tries()) << text;
      text = Pass(call);
    }
    ExpectGradientsOf(call);
    Mend();
  }
  EXPECT_GT(hit, 0);
  if (GetParam().lasts != Lasts::kOnce) {
    EXPECT_GT(thrown, 0);
  }
  RecordProperty("calls", static_cast<int>(calls));
  RecordProperty("thrown", static_cast<int>(thrown));
  const absl::Status closed = offload_->Close(Offload::AtClose::kRestore);
  EXPECT_TRUE(closed.ok()) << closed;
}

}  // namespace
}  // namespace terrace
