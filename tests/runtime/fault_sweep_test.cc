// A whole optimizer step over two paths, each of its I/O calls failing in
// turn, in every way, on every engine. Whatever happened: an error names path,
// offset and cause, the step is then incomplete and takes nothing but itself,
// and the same step again gives the bits of the undisturbed one. The reference
// is plain vectors and the scalar step.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/fault_training.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// Which attempts at a step end in an error.
enum class Heard : uint8_t {
  kNever,   // healed
  kTold,    // healed, and the path's report says what it was
  kMay,     // unless it was a fetch ahead, or a copy that was not read
  kAlways,  // in this step or, a late write-back, in the next
};

struct Disturbance {
  const char* name;
  CallFilter filter;
  Fault fault;
  bool keeps_place;  // each later call there fails too, until faults end
  Heard heard;
  absl::StatusCode code;
  const char* cause;
  FaultTrainingOptions training = {};
};

// Races do not depend on which call it is.
#if defined(__SANITIZE_THREAD__)
constexpr int64_t kStride = 4;
#else
constexpr int64_t kStride = 1;
#endif

constexpr absl::StatusCode kOk = absl::StatusCode::kOk;
constexpr CallFilter kAny = CallFilter::kAny;
constexpr CallFilter kReads = CallFilter::kReads;
constexpr CallFilter kWrites = CallFilter::kWrites;

// For what is healthy, too, on a busy machine.
constexpr FaultTrainingOptions kImpatient = {.io_timeout =
                                                 absl::Milliseconds(200)};
constexpr FaultTrainingOptions kNoPrefetch = {.prefetch = false};
constexpr FaultTrainingOptions kOnePath = {.paths = 1};

const Disturbance kDisturbances[] = {
    // Healed: no step hears of them.
    {"Short", kAny, {FaultKind::kShort}, false, Heard::kNever, kOk, ""},
    {"Late", kAny, {FaultKind::kDelay}, false, Heard::kNever, kOk, ""},
    {"Reordered", kAny, {FaultKind::kReorder}, false, Heard::kNever, kOk, ""},
    {"Interrupted",
     kAny,
     {FaultKind::kError, EINTR},
     false,
     Heard::kNever,
     kOk,
     ""},
    {"PartlySubmitted",
     kAny,
     {FaultKind::kPartialSubmit},
     false,
     Heard::kNever,
     kOk,
     ""},
    {"ReadErrorOnce",
     kReads,
     {FaultKind::kError, EIO},
     false,
     Heard::kNever,
     kOk,
     ""},
    {"FlippedInTransit",
     kReads,
     {FaultKind::kBitFlip},
     false,
     Heard::kNever,
     kOk,
     ""},
    // The other path takes what one refuses.
    {"WriteError",
     kWrites,
     {FaultKind::kError, EIO},
     false,
     Heard::kTold,
     absl::StatusCode::kUnavailable,
     "EIO"},
    {"WriteErrorAfterTheFact",
     kWrites,
     {FaultKind::kErrorAfter, EIO},
     true,
     Heard::kTold,
     absl::StatusCode::kUnavailable,
     "EIO"},
    {"NoSpace",
     kWrites,
     {FaultKind::kError, ENOSPC},
     true,
     Heard::kTold,
     absl::StatusCode::kResourceExhausted,
     "ENOSPC"},
    // The step is incomplete, and finished when the fault is gone.
    {"WriteErrorOnTheOnlyPath",
     kWrites,
     {FaultKind::kError, EIO},
     false,
     Heard::kAlways,
     absl::StatusCode::kUnavailable,
     "EIO",
     kOnePath},
    {"NoSpaceOnTheOnlyPath",
     kWrites,
     {FaultKind::kError, ENOSPC},
     true,
     Heard::kAlways,
     absl::StatusCode::kResourceExhausted,
     "ENOSPC",
     kOnePath},
    {"ReadRefused",
     kReads,
     {FaultKind::kError, ENOMEM},
     true,
     Heard::kAlways,
     absl::StatusCode::kUnavailable,
     "ENOMEM",
     kNoPrefetch},
    {"ReadAheadRefused",
     kReads,
     {FaultKind::kError, ENOMEM},
     false,
     Heard::kMay,
     absl::StatusCode::kUnavailable,
     "ENOMEM"},
    {"ReadPastTheTimeout",
     kReads,
     {FaultKind::kNever},
     false,
     Heard::kMay,
     absl::StatusCode::kDeadlineExceeded,
     "deadline",
     kImpatient},
    {"WritePastTheTimeout",
     kWrites,
     {FaultKind::kNever},
     false,
     Heard::kAlways,
     absl::StatusCode::kDeadlineExceeded,
     "deadline",
     kImpatient},
    // The bytes are gone.
    {"ReadError",
     kReads,
     {FaultKind::kError, EIO},
     true,
     Heard::kAlways,
     absl::StatusCode::kDataLoss,
     "EIO"},
    {"EndOfFile",
     kReads,
     {FaultKind::kZero},
     true,
     Heard::kAlways,
     absl::StatusCode::kDataLoss,
     "end of file"},
    {"FlippedAtEachRead",
     kReads,
     {.kind = FaultKind::kBitFlip, .flipped_byte = 4096 + 1000},
     true,
     Heard::kAlways,
     absl::StatusCode::kDataLoss,
     "extent header"},
    {"FlippedHeader",
     kWrites,
     {.kind = FaultKind::kBitFlip, .flipped_byte = 9},
     false,
     Heard::kMay,
     absl::StatusCode::kDataLoss,
     "extent header"},
    {"FlippedOnTheMedium",
     kWrites,
     {.kind = FaultKind::kBitFlip, .flipped_byte = 4096 + 1000},
     false,
     Heard::kMay,
     absl::StatusCode::kDataLoss,
     "extent header"},
};

struct SweepCase {
  TestWorld world;
  Disturbance disturbance;
};

std::ostream& operator<<(std::ostream& out, const SweepCase& each) {
  return out << each.disturbance.name << ", " << each.world;
}

std::vector<SweepCase> AllCases() {
  std::vector<SweepCase> cases;
  for (const Disturbance& disturbance : kDisturbances) {
    for (TestWorld world : kDiskWorlds) cases.push_back({world, disturbance});
  }
  return cases;
}

class FaultSweep : public testing::TestWithParam<SweepCase> {
 protected:
  void SetUp() override {
    const absl::Status supported = TestRuntime::Supports(GetParam().world);
    if (!supported.ok()) GTEST_SKIP() << supported;
  }

  const Disturbance& disturbance() const { return GetParam().disturbance; }

  // Whether a busy machine can make what is healthy late as well.
  bool hurried() const {
    return GetParam().world != TestWorld::kVirtual &&
           disturbance().training.io_timeout == kImpatient.io_timeout;
  }
  // Nothing fails any more; but in a hurry, what is late may need other tries.
  absl::Status FinishStep() {
    absl::Status status = training_->Step();
    for (int tries = 0; hurried() && tries < 20 && !status.ok(); ++tries) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_TRUE(training_->WaitForQuarantine());
      status = training_->Step();
    }
    return status;
  }
  std::string StateDifference() {
    std::string difference = training_->StateDifference();
    for (int tries = 0; hurried() && tries < 20 && !difference.empty();
         ++tries) {
      difference = training_->StateDifference();
    }
    return difference;
  }

  void Begin() {
    training_ = std::make_unique<FaultTraining>(GetParam().world,
                                                disturbance().training);
    ASSERT_GE(training_->optimizer().plan().chunks, 8);
    for (int step = 1; step <= 2; ++step) {
      training_->Draw();
      const absl::Status status = FinishStep();
      ASSERT_TRUE(status.ok()) << status;
    }
    training_->LetGo();
    training_->Draw();
    const absl::Status status = FinishStep();
    ASSERT_TRUE(status.ok()) << status;
    // All chunks but the two that stay are read and written; a write-back may
    // have come late, and a step in a hurry may have needed other tries.
    const int64_t streamed = training_->optimizer().plan().chunks - 2;
    calls_of_a_step_ = disturbance().filter == kAny ? 2 * streamed : streamed;
    const int64_t counted = training_->faults().calls(disturbance().filter);
    if (!hurried()) calls_of_a_step_ = std::max(calls_of_a_step_, counted);
    ASSERT_EQ(StateDifference(), "");
  }

  // The n-th call from here on is disturbed; a write-back may be heard of late.
  void Sweep(int64_t n) {
    training_->LetGo();
    ASSERT_TRUE(disturbance().heard != Heard::kTold || training_->Heal());
    if (disturbance().keeps_place) {
      training_->faults().FailPlace(n, disturbance().fault,
                                    disturbance().filter);
    } else {
      training_->faults().FailCall(n, disturbance().fault,
                                   disturbance().filter);
    }
    heard_ = 0;
    disturbed_ = false;
    for (int step = 0; step < 3 && training_ != nullptr; ++step) {
      training_->Draw();
      const absl::Status status = training_->Step();
      disturbed_ |= training_->faults().faults() > 0;
      // It was a call of the first step, or of its write-backs in the second.
      if (step == 1 && heard_ == 0) {
        ASSERT_TRUE(disturbed_);
      }
      if (!status.ok()) Fails(status);
      if (HasFailure()) return;
    }
    if (training_ == nullptr) return;  // lost, and said so
    const std::string difference = StateDifference();
    if (!difference.empty()) {
      // Only now was it read again.
      const absl::Status status = training_->Step();
      ASSERT_FALSE(status.ok()) << difference;
      return Fails(status);
    }
    EXPECT_EQ(training_->Difference(), "");
    if (disturbance().heard == Heard::kAlways) {
      EXPECT_GT(heard_, 0);
    }
    if (disturbance().heard == Heard::kTold) CheckTold();
  }

  void Fails(const absl::Status& status) {
    ++heard_;
    ASSERT_GE(disturbance().heard, Heard::kMay) << status;
    CheckError(status);
    if (absl::IsDataLoss(status)) {
      CheckLoss(status);
      training_.reset();
      return;
    }
    EXPECT_TRUE(training_->optimizer().incomplete());
    EXPECT_TRUE(
        absl::IsFailedPrecondition(training_->Step({.learning_rate = 0.5})));
    EXPECT_TRUE(
        absl::IsFailedPrecondition(training_->StepWithOtherGradients()));
    EXPECT_TRUE(training_->optimizer().incomplete());
    training_->LetGo();
    ASSERT_TRUE(training_->WaitForQuarantine());
    const absl::Status again = FinishStep();
    ASSERT_TRUE(again.ok()) << again;
    EXPECT_FALSE(training_->optimizer().incomplete());
    EXPECT_EQ(training_->Difference(), "");
  }

  // The code, the file, the offset of just the call that was disturbed.
  void CheckError(const absl::Status& status) {
    EXPECT_EQ(status.code(), disturbance().code) << status;
    const std::string message(status.message());
    EXPECT_THAT(message, HasSubstr(disturbance().cause));
    if (hurried()) {
      EXPECT_THAT(message, HasSubstr(", offset "));
      return;
    }
    const IoRequest disturbed = training_->faults().first_disturbed();
    const Stats stats = training_->runtime().GetStats();
    const auto path = static_cast<size_t>(disturbed.file);
    EXPECT_THAT(message,
                HasSubstr(absl::StrCat(stats.paths()[path].disk.file,
                                       ", offset ", disturbed.offset, ", ",
                                       disturbed.size_bytes, " bytes")));
  }

  void CheckTold() {
    const int file = training_->faults().first_disturbed().file;
    const TierStats path = training_->runtime().GetStats().paths()[file];
    EXPECT_EQ(path.write_error.code(), disturbance().code);
    const std::string told(path.write_error.message());
    EXPECT_THAT(told, HasSubstr(absl::StrCat(path.disk.file, ", offset ")));
    EXPECT_THAT(told, HasSubstr(disturbance().cause));
  }

  void CheckLoss(const absl::Status& status) {
    training_->LetGo();
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_EQ(training_->Step(), status);
      EXPECT_EQ(training_->StepWithOtherGradients(), status);
      EXPECT_EQ(training_->ReadFirstMoment(), status);
    }
  }

  std::unique_ptr<FaultTraining> training_;
  int64_t calls_of_a_step_ = 0;
  int heard_ = 0;
  bool disturbed_ = false;
};
INSTANTIATE_TEST_SUITE_P(Faults, FaultSweep, testing::ValuesIn(AllCases()),
                         [](const testing::TestParamInfo<SweepCase>& each) {
                           return absl::StrCat(each.param.disturbance.name,
                                               TestWorldName(each.param.world));
                         });

TEST_P(FaultSweep, EachCallOfAStepInTurn) {
  int64_t all_heard = 0;
  int64_t n = 1;
  for (; n == 1 || n <= calls_of_a_step_; n += kStride) {
    if (training_ == nullptr) Begin();
    if (HasFatalFailure()) return;
    SCOPED_TRACE(absl::StrCat("call ", n, " of ", calls_of_a_step_));
    Sweep(n);
    if (HasFailure()) return;
    all_heard += heard_ > 0 ? 1 : 0;
  }
  EXPECT_GT(n, 6);
  if (disturbance().heard >= Heard::kMay) {
    EXPECT_GT(all_heard, 0);
  }
  RecordProperty("calls", static_cast<int>(calls_of_a_step_));
  RecordProperty("heard", static_cast<int>(all_heard));
}

}  // namespace
}  // namespace terrace
