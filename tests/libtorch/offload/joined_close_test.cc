// The end of an offloaded model and of the optimizers that joined it, in either
// order, with updates under way and after they failed.
#include <sys/resource.h>
#include <torch/serialize/archive.h>

#include <csignal>

#include "absl/time/clock.h"
#include "libtorch/step/late/update_net.h"
#include "tests/libtorch/offload/joined_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

using AtClose = Offload::AtClose;

class JoinedCloseTest : public JoinedTest {
 protected:
  void ExpectClosed() {
    const auto refused = [](const absl::Status& status) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("this optimizer is closed"));
    };
    refused(optimizer_->TryStep());
    refused(optimizer_->StateOf(TrainedOf(model_)[0]).status());
    EXPECT_TRUE(optimizer_->Flush().ok());
    EXPECT_THAT(ThrownBy([&] { optimizer_->step(); }),
                HasSubstr("this optimizer is closed"));
    EXPECT_THAT(ThrownBy([&] {
                  ::torch::serialize::OutputArchive archive;
                  optimizer_->save(archive);
                }),
                HasSubstr("this optimizer is closed"));
    EXPECT_THAT(ThrownBy([&] {
                  ::torch::serialize::InputArchive archive;
                  optimizer_->load(archive);
                }),
                HasSubstr("this optimizer is closed"));
    optimizer_->zero_grad();
  }
  void ExpectGradientsInMemory() {
    TwoPasses(model_, 99);
    for (const at::Tensor& each : TrainedOf(model_)) {
      EXPECT_FALSE(IsOffloaded(each.grad()));
    }
  }
};

TEST_F(JoinedCloseTest, CloseFinishesUpdatesAndEndsTheOptimizer) {
  MakeJoined(Share(0.2));
  StepBoth(1, 2);
  const absl::Status closed = offload_->Close(AtClose::kRestore);
  ASSERT_TRUE(closed.ok()) << closed;
  EXPECT_TRUE(folder_.empty());
  ExpectSameParameters();
  ExpectClosed();
  ExpectGradientsInMemory();
  EXPECT_GT(offload_->stats().joined_bytes, 0);
  EXPECT_TRUE(offload_->Close(AtClose::kRestore).ok());
  optimizer_.reset();
  offload_.reset();
  ExpectSameParameters();
}

TEST_F(JoinedCloseTest, GradientsComeBackWithTheParameters) {
  MakeJoined(Share(0.2));
  TwoPasses(model_, 1);
  TwoPasses(plain_, 1);
  ASSERT_TRUE(offload_->Close(AtClose::kRestore).ok());
  const auto ours = TrainedOf(model_), expected = TrainedOf(plain_);
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_FALSE(IsOffloaded(ours[i].grad()));
    EXPECT_NE(ours[i].grad().const_data_ptr(), nullptr);
    EXPECT_TRUE(ours[i].grad().equal(expected[i].grad())) << i;
  }
}

TEST_F(JoinedCloseTest, AfterARefusingCloseEachUseThrows) {
  MakeJoined(Share(0.2));
  StepBoth(1, 2);
  const absl::Status closed = offload_->Close(AtClose::kRefuse);
  ASSERT_TRUE(closed.ok()) << closed;
  EXPECT_TRUE(folder_.empty());
  EXPECT_THAT(ThrownBy([&] { model_->forward(tokens_); }),
              StartsWith("terrace: "));
  ExpectClosed();
}

TEST_F(JoinedCloseTest, TheOffloadMayEndFirst) {
  MakeJoined(Share(0.2));
  StepBoth(1, 2);
  offload_.reset();
  EXPECT_TRUE(folder_.empty());
  ExpectSameParameters();
  ExpectClosed();
  optimizer_.reset();
  ExpectSameParameters();
}

TEST_F(JoinedCloseTest, TheOptimizerMayEndFirstAndItsMemoryIsTheNextOnes) {
  MakeJoined(Share(0.2));
  const int64_t alone = offload_->stats().joined_bytes;
  StepBoth(1, 2);
  optimizer_.reset();
  ExpectSameParameters();
  model_->zero_grad();
  ExpectGradientsInMemory();
  model_->zero_grad();
  optimizer_ = Join(WithRate());
  ASSERT_NE(optimizer_, nullptr);
  EXPECT_EQ(offload_->stats().joined_bytes, alone);
  reference_.reset();
  reference_ =
      *OffloadedAdamW::Create(*runtime_, TrainedOf(plain_), WithRate());
  StepBoth(3, 4);
  ExpectSameParameters();
  EXPECT_TRUE(offload_->Close(AtClose::kRestore).ok());
}

TEST_F(JoinedCloseTest, WhileAParameterIsLeasedAllGoesOn) {
  MakeJoined(Share(0.2));
  StepBoth(1, 1);
  auto lease = offload_->MakeLease(model_->out, Offload::Access::kRead);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const absl::Status refused = offload_->Close(AtClose::kRestore);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("'out'"), HasSubstr("leased")));
  StepBoth(2, 2);
  // Also once the object is gone: all is left behind.
  offload_.reset();
  lease->End();
  optimizer_->zero_grad();
  reference_->zero_grad();
  ExpectSame(TwoPasses(model_, 3), TwoPasses(plain_, 3));
  ASSERT_TRUE(optimizer_->TryStep().ok());
  ASSERT_TRUE(reference_->TryStep().ok());
  ExpectSameParameters();
  optimizer_.reset();
  ExpectSameParameters();
}

// Nothing can be written by a process meanwhile: files may not be so large.
class NoWrites {
 public:
  explicit NoWrites(pid_t writer) : writer_(writer) {
    before_signal_ = std::signal(SIGXFSZ, SIG_IGN);
    prlimit(writer_, RLIMIT_FSIZE, nullptr, &before_);
    const rlimit none = {.rlim_cur = 1, .rlim_max = before_.rlim_max};
    EXPECT_EQ(prlimit(writer_, RLIMIT_FSIZE, &none, nullptr), 0);
  }
  ~NoWrites() {
    prlimit(writer_, RLIMIT_FSIZE, &before_, nullptr);
    std::signal(SIGXFSZ, before_signal_);
  }
  NoWrites(const NoWrites&) = delete;
  NoWrites& operator=(const NoWrites&) = delete;

 private:
  const pid_t writer_;
  rlimit before_ = {};
  void (*before_signal_)(int) = nullptr;
};

// What the updates of a step failed with.
class JoinedFailureTest : public JoinedCloseTest {
 protected:
  void StepWithoutWrites() {
    MakeJoined(Share(1e-6));
    StepBoth(1, 1);
    ASSERT_TRUE(optimizer_->Flush().ok());
    optimizer_->zero_grad();
    reference_->zero_grad();
    TwoPasses(model_, 2);
    TwoPasses(plain_, 2);
    ASSERT_TRUE(reference_->TryStep().ok());
    none_ = std::make_unique<NoWrites>(folder_.writer());
    const absl::Status status = optimizer_->TryStep();
    ASSERT_TRUE(status.ok()) << status;  // its updates go on
  }
  // The step itself fails part-way.
  void FailWithoutOverlap() {
    MakeJoined(Share(1e-6));
    optimizer_->set_overlap(false);
    StepBoth(1, 1);
    optimizer_->zero_grad();
    reference_->zero_grad();
    TwoPasses(model_, 2);
    TwoPasses(plain_, 2);
    ASSERT_TRUE(reference_->TryStep().ok());
    none_ = std::make_unique<NoWrites>(folder_.writer());
    ExpectTooLarge(optimizer_->TryStep());
    ASSERT_TRUE(optimizer_->offloaded().incomplete());
    Mend();
  }
  void Mend() { none_.reset(); }
  static void ExpectTooLarge(const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("EFBIG"));
  }

 private:
  std::unique_ptr<NoWrites> none_;
};

TEST_F(JoinedFailureTest, FlushTellsItAndTriesAgainToTheSameBits) {
  StepWithoutWrites();
  ExpectTooLarge(optimizer_->Flush());
  Mend();
  const absl::Status again = optimizer_->Flush();
  ASSERT_TRUE(again.ok()) << again;
  ExpectSameParameters();
  StepBoth(3, 4);
  ExpectSameParameters();
  ExpectSameState();
  ASSERT_TRUE(offload_->Close(AtClose::kRestore).ok());
  ExpectSameParameters();
}

TEST_F(JoinedFailureTest, WhatCouldNotBeUpdatedIsRefusedUntilItIs) {
  StepWithoutWrites();
  ExpectTooLarge(optimizer_->Flush());
  Mend();
  int refused = 0, thrown = 0;
  for (const at::Tensor& each : TrainedOf(model_)) {
    if (each.is_same(model_->out)) continue;  // its view would go on throwing
    const absl::Status lease =
        offload_->MakeLease(each, Offload::Access::kRead).status();
    if (!lease.ok()) {
      ++refused;
      EXPECT_EQ(lease.code(), absl::StatusCode::kFailedPrecondition) << lease;
      EXPECT_THAT(std::string(lease.message()),
                  AllOf(HasSubstr("could not be updated"),
                        HasSubstr("; Flush() tries again")));
    }
    const std::string text = ThrownBy([&] { each.detach().clone(); });
    if (text.empty()) continue;
    ++thrown;
    EXPECT_THAT(text, AllOf(StartsWith("terrace: "), HasSubstr("EFBIG")));
  }
  EXPECT_GT(refused, 0);
  EXPECT_EQ(thrown, refused);
  const absl::Status again = optimizer_->Flush();
  ASSERT_TRUE(again.ok()) << again;
  ExpectSameParameters();
  StepBoth(3, 4);
  ExpectSameParameters();
  ASSERT_TRUE(offload_->Close(AtClose::kRestore).ok());
  ExpectSameParameters();
}

TEST_F(JoinedFailureTest, CloseTellsItAndClosesAllTheSame) {
  StepWithoutWrites();
  EXPECT_FALSE(optimizer_->offloaded().last_report().skipped);  // waits
  Mend();
  ExpectTooLarge(offload_->Close(AtClose::kRestore));
  EXPECT_TRUE(offload_->Close(AtClose::kRestore).ok());
  EXPECT_TRUE(folder_.empty());
  ExpectClosed();
  for (const at::Tensor& each : model_->parameters()) {
    EXPECT_NE(each.const_data_ptr(), nullptr);
    EXPECT_TRUE(each.isfinite().all().item<bool>());
  }
}

TEST_F(JoinedFailureTest, CloseTellsThatAStepWithoutOverlapIsIncomplete) {
  FailWithoutOverlap();
  const absl::Status closed = offload_->Close(AtClose::kRestore);
  ExpectTooLarge(closed);
  EXPECT_THAT(std::string(closed.message()),
              HasSubstr("a step is incomplete, and some parameters are those "
                        "before it: "));
  EXPECT_TRUE(offload_->Close(AtClose::kRestore).ok());
  EXPECT_TRUE(folder_.empty());
  ExpectClosed();
}

TEST_F(JoinedFailureTest, TheOffloadsFlushIsThatOfItsOptimizers) {
  StepWithoutWrites();
  ExpectTooLarge(offload_->Flush(absl::InfiniteFuture()));
  Mend();
  const absl::Status late = offload_->Flush(absl::Now() - absl::Seconds(1));
  // What fails of the next try, a chunk or all that is left.
  EXPECT_TRUE(absl::IsResourceExhausted(late) || absl::IsDeadlineExceeded(late))
      << late;
  const absl::Status again = offload_->Flush(absl::InfiniteFuture());
  ASSERT_TRUE(again.ok()) << again;
  EXPECT_TRUE(UpdateNet::Get().pending().empty());
  ExpectSameParameters();
  ASSERT_TRUE(offload_->Close(AtClose::kRestore).ok());
  EXPECT_TRUE(offload_->Flush(absl::InfiniteFuture()).ok());
}

TEST_F(JoinedFailureTest, CloseTriesOnceMoreWhatWasTold) {
  StepWithoutWrites();
  ExpectTooLarge(optimizer_->Flush());
  Mend();
  const absl::Status closed = offload_->Close(AtClose::kRestore);
  EXPECT_TRUE(closed.ok()) << closed;
  ExpectSameParameters();
}

TEST_F(JoinedFailureTest, ARefusedCloseTellsItToo) {
  StepWithoutWrites();
  EXPECT_FALSE(optimizer_->offloaded().last_report().skipped);  // waits
  Mend();
  // Of the frozen layer, which no update waits for.
  auto lease = offload_->MakeLease(model_->layers[3]->parameters()[0],
                                   Offload::Access::kRead);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const absl::Status refused = offload_->Close(AtClose::kRestore);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("leased"), HasSubstr("EFBIG")));
  lease->End();
  ASSERT_TRUE(optimizer_->Flush().ok());  // tries again
  ExpectSameParameters();
}

}  // namespace
}  // namespace terrace
