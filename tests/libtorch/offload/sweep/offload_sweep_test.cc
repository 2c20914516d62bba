// Training with all that it has below, each read and each write of forward,
// backward, the optimizer's step, its late updates and the end failing in turn,
// in every way. Whatever happened: nothing waits for ever, what is told names
// path, offset and cause, each parameter is what it was before or after a step,
// and where it may be done again that gives the bits of plain memory.
//
// TERRACE_SWEEP=all takes every call of each phase, in place of two.
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/offload/sweep/swept_faults.h"
#include "tests/libtorch/offload/sweep/swept_training.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using AtClose = Offload::AtClose;

class OffloadSweep : public testing::TestWithParam<SweepCase> {
 protected:
  static constexpr int64_t kAimedAt = 2;  // the step
  static constexpr absl::Duration kShortTimeout = absl::Milliseconds(150);

  const SweptFault& fault() const { return GetParam().fault; }
  Phase phase() const { return GetParam().phase; }
  // An answer that never comes is a matter of time, which a busy machine may
  // take for what is healthy too.
  bool is_hurried() const { return fault().fault.kind == FaultKind::kNever; }
  int most_tries() const { return is_hurried() ? 20 : 2; }

  // A training in which that call of the phase is disturbed, from 1; 0: none.
  void Run(int64_t call);
  void Aim(Phase phase);
  void EndPhase(Phase phase);

  // False: it cannot go on.
  bool DoPasses(int64_t step);
  bool DoStep(int64_t step);
  bool Recover();
  void GiveUp();
  void Finish();
  void CloseAimedAt();

  void Hear(const std::string& thrown);
  void Hear(const absl::Status& status);
  void CheckTold(const absl::Status& status);

  std::unique_ptr<SweptTraining> training_;
  int64_t call_ = 0;
  int64_t calls_ = 0;  // of the phase
  int64_t whole_ = 0;  // steps whose updates are all made
  int64_t begun_ = 0;
  int heard_ = 0;
  bool is_lost_ = false;      // bytes are
  bool is_poisoned_ = false;  // the optimizer, as its step's text says
};
INSTANTIATE_TEST_SUITE_P(Faults, OffloadSweep, testing::ValuesIn(AllCases()),
                         [](const auto& chosen) {
                           return NameOf(chosen.param);
                         });

void OffloadSweep::Aim(Phase phase) {
  if (phase != this->phase()) return;
  FaultPlan& faults = training_->faults();
  faults.Clear();
  if (call_ == 0) return;
  Fault fault = this->fault().fault;
  if (phase == Phase::kClose && is_hurried()) {
    // Past its deadline: the Runtime's end waits for what never comes.
    fault = {.kind = FaultKind::kDelay, .delay = 4 * kShortTimeout};
  }
  const CallFilter filter = this->fault().filter;
  if (this->fault().lasts == Lasts::kPlace) {
    faults.FailPlace(call_, fault, filter);
  } else {
    faults.FailCall(call_, fault, filter,
                    this->fault().lasts == Lasts::kOn ? INT64_MAX / 2 : 1);
  }
}

void OffloadSweep::EndPhase(Phase phase) {
  if (phase != this->phase() || call_ != 0) return;
  calls_ = training_->faults().calls(fault().filter);
}

// An operation's: of a fetch, of a gradient that could not be taken over, or of
// an update that it waited for.
void OffloadSweep::Hear(const std::string& thrown) {
  EXPECT_THAT(thrown, StartsWith("terrace: "));
  const absl::Status error = training_->offload().error();
  ASSERT_FALSE(error.ok()) << thrown;
  if (absl::StrContains(thrown, "could not be updated")) {
    ++heard_;  // what Flush tells
    EXPECT_THAT(thrown, HasSubstr("Flush() tries again"));
    EXPECT_TRUE(is_hurried() || absl::StrContains(thrown, fault().cause))
        << thrown;
    return;
  }
  if (!is_hurried()) {
    EXPECT_THAT(thrown, HasSubstr(fault().cause));
  }
  CheckTold(error);
}

void OffloadSweep::Hear(const absl::Status& status) {
  if (phase() == Phase::kBlocking &&
      absl::StrContains(status.message(), "could not be read again")) {
    is_poisoned_ = true;
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    return;
  }
  CheckTold(status);
}

// The code, the file, the errno.
void OffloadSweep::CheckTold(const absl::Status& status) {
  ++heard_;
  is_lost_ |= absl::IsDataLoss(status);
  ASSERT_NE(fault().code, absl::StatusCode::kOk) << status;
  // What cannot be written keeps the room of what is to come, and a path that
  // refuses it takes nothing new.
  const std::string message(status.message());
  const bool has_no_path = absl::IsUnavailable(status) &&
                           absl::StrContains(message, "no usable path");
  EXPECT_TRUE(status.code() == fault().code ||
              absl::IsResourceExhausted(status) || has_no_path)
      << status;
  if (is_hurried()) {
    // Or of what was late beside it, such as the file's growth.
    EXPECT_TRUE(absl::IsResourceExhausted(status) ||
                absl::StrContains(message, "memory:0"))
        << status;
    return;
  }
  EXPECT_THAT(message, HasSubstr(fault().cause));
  EXPECT_THAT(message, HasSubstr("memory:0, offset "));
  const IoFault told = IoFaultOf(status);
  EXPECT_EQ(told.error, fault().fault.error) << status;
  EXPECT_EQ(told.path, "memory:0") << status;
}

// With the fault gone: updates that failed are tried again, and then fetches.
bool OffloadSweep::Recover() {
  EXPECT_TRUE(training_->Mend());
  absl::Status flushed = training_->optimizer().Flush();
  for (int tries = 0; !flushed.ok() && tries < most_tries(); ++tries) {
    Hear(flushed);
    flushed = training_->optimizer().Flush();
  }
  const absl::Status retried = training_->offload().Retry();
  EXPECT_TRUE(retried.ok() || is_lost_) << retried;
  if (!flushed.ok()) {
    EXPECT_TRUE(is_lost_ || !retried.ok()) << flushed;
  } else if (!training_->optimizer().offloaded().incomplete()) {
    whole_ = training_->optimizer().offloaded().step();
  }
  return flushed.ok() && retried.ok() && !is_poisoned_;
}

// What is told of a run that ends here: a checkpoint is resumed from.
void OffloadSweep::GiveUp() {
  EXPECT_TRUE(is_lost_ || is_poisoned_);
  EXPECT_GT(heard_, 0);
  training_->ZeroGradients();
  const int64_t failures = training_->offload().stats().hook.failures;
  const absl::Status closed = training_->offload().Close(AtClose::kRestore);
  EXPECT_FALSE(absl::IsFailedPrecondition(closed)) << closed;
  const int refused = training_->CountRefused(whole_, begun_);
  EXPECT_LE(refused, failures);
  EXPECT_TRUE(refused == 0 || !closed.ok());
  const absl::Status again = training_->offload().Close(AtClose::kRestore);
  EXPECT_TRUE(again.ok()) << again;
}

bool OffloadSweep::DoPasses(int64_t step) {
  training_->offload().BeginStep();
  for (int tries = 0; tries <= most_tries(); ++tries) {
    const bool is_aimed_at = step == kAimedAt && tries == 0;
    training_->ZeroGradients();
    if (is_aimed_at) Aim(Phase::kForward);
    std::string thrown = training_->Forward(step);
    if (is_aimed_at) EndPhase(Phase::kForward);
    if (step == kAimedAt + 1) EndPhase(Phase::kOverlap);
    if (thrown.empty()) {
      if (is_aimed_at) Aim(Phase::kBackward);
      thrown = training_->Backward();
      if (is_aimed_at) EndPhase(Phase::kBackward);
    }
    if (thrown.empty()) {
      training_->ExpectLoss(step);
      return true;
    }
    Hear(thrown);
    training_->ZeroGradients();
    if (HasFailure() || !Recover()) return false;
    // What was lost may have been a gradient, which backward makes again.
    if (tries > 0 && is_lost_) return false;
  }
  ADD_FAILURE() << "the passes of step " << step << " go on failing";
  return false;
}

bool OffloadSweep::DoStep(int64_t step) {
  if (step == kAimedAt) {
    for (const Phase each :
         {Phase::kBlocking, Phase::kUpdates, Phase::kOverlap}) {
      Aim(each);
    }
  }
  begun_ = step;
  absl::Status status = training_->optimizer().TryStep();
  for (int tries = 0; !status.ok(); ++tries) {
    Hear(status);
    if (HasFailure() || !Recover()) return false;
    if (absl::IsDataLoss(status)) {  // it stays
      EXPECT_EQ(training_->optimizer().TryStep(), status);
      return false;
    }
    if (tries == most_tries()) {
      ADD_FAILURE() << "step " << step << " goes on failing: " << status;
      return false;
    }
    status = training_->optimizer().TryStep();
  }
  if (phase() != Phase::kUpdates && phase() != Phase::kBlocking) return true;
  status = training_->optimizer().Flush();
  if (step == kAimedAt) EndPhase(phase());
  if (!status.ok()) {
    Hear(status);
    if (HasFailure() || !Recover()) return false;
  }
  whole_ = step;
  return true;
}

void OffloadSweep::Finish() {
  if (phase() == Phase::kClose) return CloseAimedAt();
  const absl::Status flushed = training_->optimizer().Flush();
  if (!flushed.ok()) {
    Hear(flushed);
    if (!Recover()) return GiveUp();
  }
  EXPECT_TRUE(training_->Mend());
  training_->ExpectParametersAfter(SweptTraining::kSteps);
  training_->ExpectStateAfterAll();
  training_->ZeroGradients();
  const absl::Status closed = training_->offload().Close(AtClose::kRestore);
  EXPECT_TRUE(closed.ok()) << closed;
  training_->ExpectParametersAfter(SweptTraining::kSteps);
}

void OffloadSweep::CloseAimedAt() {
  Aim(Phase::kClose);
  const absl::Status closed = training_->offload().Close(AtClose::kRestore);
  EndPhase(Phase::kClose);
  if (!closed.ok()) Hear(closed);
  const int refused =
      training_->CountRefused(closed.ok() ? begun_ : begun_ - 1, begun_);
  // What cannot be written is in memory.
  const bool may_refuse = fault().filter == kReads || is_hurried();
  EXPECT_TRUE(refused == 0 || (may_refuse && !closed.ok())) << closed;
  const absl::Status again = training_->offload().Close(AtClose::kRestore);
  EXPECT_TRUE(again.ok()) << again;
}

void OffloadSweep::Run(int64_t call) {
  SCOPED_TRACE(absl::StrCat("call ", call, " of ", calls_));
  const absl::Time begun = absl::Now();
  call_ = call;
  whole_ = begun_ = 0;
  is_lost_ = is_poisoned_ = false;
  SweptOptions options;
  options.overlap = phase() != Phase::kBlocking;
  if (is_hurried()) {
    options.io_timeout = OnThisMachine(kShortTimeout);
    options.patience = OnThisMachine(absl::Seconds(1));
  }
  training_ = std::make_unique<SweptTraining>(options);
  bool goes_on = true;
  for (int64_t step = 1; step <= SweptTraining::kSteps && goes_on; ++step) {
    goes_on = DoPasses(step) && DoStep(step);
    if (HasFailure()) return;
  }
  goes_on ? Finish() : GiveUp();
  training_.reset();
  EXPECT_LT(absl::Now() - begun, OnThisMachine(absl::Seconds(30)));
}

TEST_P(OffloadSweep, EachCallInTurn) {
  // The fault does not matter to it.
  static auto& calls = *new std::map<std::pair<Phase, CallFilter>, int64_t>();
  const auto [counted, is_new] = calls.try_emplace({phase(), fault().filter});
  if (is_new) {
    Run(0);
    if (HasFailure()) return;
    counted->second = calls_;
  }
  calls_ = counted->second;
  ASSERT_GT(calls_, 3);
  const int64_t stride = TakesAll() ? 1 : (calls_ + 1) / 2;
  for (int64_t call = 1; call <= calls_ && !HasFailure(); call += stride) {
    Run(call);
  }
  if (fault().lasts != Lasts::kOnce && !HasFailure()) {
    EXPECT_GT(heard_, 0);
  }
  RecordProperty("calls", static_cast<int>(calls_));
  RecordProperty("heard", heard_);
}

// Not even a place is to be had for a gradient then.
TEST(OffloadFullDisk, GradientsForWhichTheFileCannotGrowEndBackward) {
  SweptTraining training({});
  training.offload().BeginStep();
  training.ZeroGradients();
  training.tiers().disk().Fill();
  EXPECT_EQ(training.Forward(1), "");
  const std::string thrown = training.Backward();
  EXPECT_THAT(thrown, StartsWith("terrace: 'layers."));
  EXPECT_THAT(thrown, HasSubstr(".grad' "));
  EXPECT_THAT(thrown, HasSubstr("cannot preallocate"));
  EXPECT_THAT(thrown, HasSubstr("ENOSPC"));
  const absl::Status error = training.offload().error();
  EXPECT_TRUE(absl::IsResourceExhausted(error)) << error;
  EXPECT_EQ("terrace: " + std::string(error.message()), thrown);
  training.ZeroGradients();
  EXPECT_TRUE(training.Mend());
  EXPECT_EQ(training.Forward(1), "");
  EXPECT_EQ(training.Backward(), "");
  training.ExpectLoss(1);
  const absl::Status stepped = training.optimizer().TryStep();
  EXPECT_TRUE(stepped.ok()) << stepped;
  training.ExpectParametersAfter(1);
}

}  // namespace
}  // namespace terrace
