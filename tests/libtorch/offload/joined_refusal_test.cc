// What cannot join an offloaded model, and what an optimizer that joined
// refuses: with its Status, and nothing is changed.
#include <c10/core/InferenceMode.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/libtorch/offload/joined_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Group = ::torch::optim::OptimizerParamGroup;

class JoinedRefusalTest : public JoinedTest {
 protected:
  // The message, of that code; the model is as it was.
  std::string Refused(absl::StatusCode code,
                      const std::vector<at::Tensor>& parameters) {
    const int64_t before = offload_->stats().joined_bytes;
    const absl::Status status =
        OffloadedAdamW::Create(*offload_, parameters, WithRate()).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(offload_->stats().joined_bytes, before);
    return std::string(status.message());
  }
  std::string Invalid(const std::vector<at::Tensor>& parameters) {
    const std::string message =
        Refused(absl::StatusCode::kInvalidArgument, parameters);
    ExpectValues();
    return message;
  }
};

TEST_F(JoinedRefusalTest, WhatCannotBeStepped) {
  Make(Share(0.2));
  EXPECT_THAT(Invalid({}), HasSubstr("without parameters"));
  EXPECT_THAT(Invalid({model_->out, model_->embedding->weight}),
              HasSubstr("parameters 0 and 1 are the same tensor"));
  EXPECT_THAT(Invalid({model_->out, model_->first_rows}),
              HasSubstr("parameters 0 and 1 overlap in memory"));
  EXPECT_THAT(Invalid({model_->out, model_->out * 2}),
              HasSubstr("parameter 1 is no leaf"));
  EXPECT_THAT(Invalid({at::ones({3}, at::kLong)}),
              HasSubstr("parameter 0 is Long"));
}

TEST_F(JoinedRefusalTest, AnOptimizerOverARuntimeRefusesWhatIsOffloaded) {
  Make(Share(0.2));
  reference_.reset();
  for (Runtime* const runtime : {runtime_.get(), &offload_->runtime()}) {
    const absl::Status status =
        OffloadedAdamW::Create(*runtime, TrainedOf(model_), WithRate())
            .status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("parameter 0 is offloaded"),
                      HasSubstr("make the optimizer with it")));
  }
  // Also what was taken over since.
  ASSERT_TRUE(offload_->Close(Offload::AtClose::kRestore).ok());
  auto made = OffloadedAdamW::Create(*runtime_, TrainedOf(model_), WithRate());
  ASSERT_TRUE(made.ok()) << made.status();
  TwoPasses(model_, 1);
  Make(Share(0.2));
  const absl::Status status = (*made)->TryStep();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is offloaded"));
}

TEST_F(JoinedRefusalTest, ParametersOfAnotherOffloadAreNamed) {
  Make(Share(0.2));
  ::torch::nn::Sequential other(::torch::nn::Linear(8, 9));
  auto theirs = Offload::Create(*other, Bytes(1 << 20));
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  std::vector<at::Tensor> both = TrainedOf(model_);
  for (const at::Tensor& each : other->parameters()) both.push_back(each);
  EXPECT_THAT(Invalid(both), AllOf(HasSubstr("another Offload's"),
                                   HasSubstr(": '0.weight', '0.bias'")));
  // Also those that come later.
  optimizer_ = Join(WithRate());
  ASSERT_NE(optimizer_, nullptr);
  StepBoth(1, 1);
  optimizer_->add_param_group(Group({other->parameters()[1]}));
  const absl::Status status = optimizer_->TryStep();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("'0.bias'"));
  optimizer_->param_groups().pop_back();
  // In ordinary memory again, they may be among them.
  ASSERT_TRUE((*theirs)->Close(Offload::AtClose::kRestore).ok());
  optimizer_->add_param_group(Group({other->parameters()[1]}));
  StepBoth(2, 2);
  ExpectSameParameters();
}

TEST_F(JoinedRefusalTest, AnOffloadThatIsClosed) {
  Make(Share(0.2));
  ASSERT_TRUE(offload_->Close(Offload::AtClose::kRestore).ok());
  EXPECT_THAT(Refused(absl::StatusCode::kFailedPrecondition, TrainedOf(model_)),
              HasSubstr("this Offload is closed"));
  ExpectInMemory();
}

// By the rule of the header for the model alone.
constexpr int64_t kMinimum = 2 * ((4 + 1) + (1 + 1)) * 4096;

TEST_F(JoinedRefusalTest, ABudgetBelowTheMinimumNamesIt) {
  Make(Bytes(kMinimum));
  const std::string message =
      Refused(absl::StatusCode::kResourceExhausted, TrainedOf(model_));
  ExpectValues();  // as it was
  EXPECT_THAT(message, AllOf(HasSubstr(absl::StrCat("a budget of ", kMinimum)),
                             HasSubstr("with an optimizer"),
                             HasSubstr("'layers.0.weight' most of them")));
  const std::string kBefore = "is below the minimum of ";
  const size_t at = message.find(kBefore);
  ASSERT_NE(at, std::string::npos) << message;
  const std::string number = message.substr(at + kBefore.size());
  int64_t named = 0;
  ASSERT_TRUE(absl::SimpleAtoi(number.substr(0, number.find(' ')), &named));
  EXPECT_GT(named, kMinimum);
  offload_.reset();
  Make(Bytes(named - 4096));
  EXPECT_THAT(Refused(absl::StatusCode::kResourceExhausted, TrainedOf(model_)),
              HasSubstr(number.substr(0, number.find(' '))));
  offload_.reset();
  MakeJoined(Bytes(named));
  StepBoth(1, 3);
  ExpectSameParameters();
  ExpectWithinBudget();
  EXPECT_EQ(offload_->stats().budget_bytes, named);
}

TEST_F(JoinedRefusalTest, NothingBelowForTheState) {
  if (folder_.has_daemon()) GTEST_SKIP() << "a daemon has a disk";
  // The model is in memory, and the state has the rest: with the slots that
  // parameters pass through, of 4 MiB, and what the chunks take.
  OffloadOptions options = Bytes(900 << 10);
  options.nvme_paths.clear();
  Make(options);
  EXPECT_THAT(Refused(absl::StatusCode::kResourceExhausted, TrainedOf(model_)),
              AllOf(HasSubstr("is below the minimum of"),
                    HasSubstr("4194304 that parameters which are offloaded")));
  ExpectValues();
  options.memory_budget_bytes = 4'900'000;
  offload_.reset();
  Make(options);
  EXPECT_THAT(Refused(absl::StatusCode::kInvalidArgument, TrainedOf(model_)),
              HasSubstr("there is no nvme_path for the rest"));
  ExpectValues();
  options.memory_budget_bytes = 8 << 20;
  offload_.reset();
  MakeJoined(options);
  ASSERT_NE(optimizer_, nullptr);
  StepBoth(1, 2);
  ExpectSameParameters();
}

TEST_F(JoinedRefusalTest, MoreParametersThanItHasRoomForTakeNoMemory) {
  MakeJoined(Share(0.5));
  StepBoth(1, 1);
  // The name of the next chunk is another's.
  const auto taken = offload_->runtime().Register(
      {.name = absl::StrCat("optimizer1/chunk",
                            optimizer_->offloaded().plan().chunks),
       .size_bytes = 1});
  ASSERT_TRUE(taken.ok()) << taken.status();
  const at::Tensor more = at::ones({50'000}).set_requires_grad(true);
  optimizer_->add_param_group(Group({more}));
  absl::Status status = optimizer_->TryStep();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  const int64_t after_one = offload_->stats().joined_bytes;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(optimizer_->TryStep(), status);
  }
  EXPECT_EQ(offload_->stats().joined_bytes, after_one);
  optimizer_->param_groups().pop_back();
  StepBoth(2, 3);
  ASSERT_TRUE(offload_->runtime().Unregister(*taken).ok());
  optimizer_->add_param_group(Group({more}));
  StepBoth(4, 4);
  ExpectSameParameters();
  ExpectSameState();
}

// The parameters and the state fit the disk, and gradients do not.
TEST_F(JoinedRefusalTest, AGradientThatFindsNoRoomBelow) {
  if (folder_.has_daemon()) GTEST_SKIP() << "its tiers are the daemon's";
  OffloadOptions options;
  for (const std::string& text :
       {std::string("dram=1MiB"), "nvme:" + folder_.path() + "=1300KiB"}) {
    options.tiers.push_back(*ParseTier(text));
  }
  Make(options);
  // One that is there as the optimizer is made, of which the memory has room
  // and the disk has not.
  const at::Tensor later = at::zeros({1 << 16});
  model_->out.mutable_grad() =
      later.narrow(0, 0, kTokens * kWidth).view({kTokens, kWidth});
  const absl::Status refused =
      OffloadedAdamW::Create(*offload_, TrainedOf(model_), WithRate()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("'out.grad'"), HasSubstr(folder_.path())));
  EXPECT_TRUE(TrainedOf(model_)[0].grad().equal(at::zeros({kTokens, kWidth})));
  model_->zero_grad();
  ExpectValues();
  optimizer_ = Join(WithRate());
  ASSERT_NE(optimizer_, nullptr);
  EXPECT_THAT(ThrownBy([&] { TwoPasses(model_, 1); }),
              AllOf(HasSubstr("terrace: '"), HasSubstr(".grad'"),
                    HasSubstr(folder_.path())));
  optimizer_->zero_grad();
  ExpectValues();
  ASSERT_TRUE(offload_->Close(Offload::AtClose::kRestore).ok());
  ExpectInMemory();
}

TEST_F(JoinedRefusalTest, AGradientThatIsNotTheParameters) {
  MakeJoined(Share(0.2));
  TwoPasses(model_, 1);
  TwoPasses(plain_, 1);
  const at::Tensor weight = TrainedOf(model_)[2];
  const at::Tensor gradient = weight.grad();
  for (const bool overlap : {true, false}) {
    optimizer_->set_overlap(overlap);
    weight.mutable_grad() = at::ones({3}).expand({3}).to_sparse();
    absl::Status status = optimizer_->TryStep();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("the gradient of parameter 2 is Sparse"));
    weight.mutable_grad() = gradient;
    status = optimizer_->TryStep({.learning_rate = 1});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
  EXPECT_EQ(optimizer_->offloaded().step(), 0);
  ASSERT_TRUE(optimizer_->TryStep().ok());
  ASSERT_TRUE(reference_->TryStep().ok());
  ExpectSameParameters();
}

TEST_F(JoinedRefusalTest, WhatCannotBeUpdatedAfterAStep) {
  Make(Share(0.2));
  at::Tensor fixed;
  {
    const c10::InferenceMode inference;
    fixed = at::ones({3});
  }
  std::vector<at::Tensor> parameters = TrainedOf(model_);
  parameters.push_back(fixed);
  optimizer_ = *OffloadedAdamW::Create(*offload_, parameters, WithRate());
  fixed.mutable_grad() = at::ones({3});
  absl::Status status = optimizer_->TryStep();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("inference tensor"));
  fixed.mutable_grad().reset();
  status =
      optimizer_->TryStep({.norm_gradients = absl::Span<const GradientData>()});
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  optimizer_->set_overlap(false);
  fixed.mutable_grad() = at::ones({3});
  TwoPasses(model_, 1);
  TwoPasses(plain_, 1);
  status = optimizer_->TryStep();
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(reference_->TryStep().ok());
  ExpectSameParameters();
  EXPECT_LT(fixed.max().item<float>(), 1);
}

// 0: as it should be; else what is not.
int InChild(Offload& offload, OffloadedAdamW& joined, TiedModel& model) {
  const auto more =
      OffloadedAdamW::Create(offload, TrainedOf(model), WithRate());
  if (!absl::IsCancelled(more.status())) return 1;
  if (!absl::IsCancelled(joined.StateOf(model->out).status())) return 2;
  if (joined.TryStep().ok()) return 3;
  if (!joined.Flush().ok()) return 4;
  if (!absl::IsCancelled(offload.Flush(absl::InfiniteFuture()))) return 5;
  return 0;
}

TEST_F(JoinedRefusalTest, AForkedChildHasNothingAndDisturbsNothing) {
  MakeJoined(Share(0.2));
  StepBoth(1, 2);  // updates may go on
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    const int wrong = InChild(*offload_, *optimizer_, model_);
    optimizer_.reset();
    offload_.reset();
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  StepBoth(3, 4);
  ExpectSameParameters();
  EXPECT_TRUE(offload_->Close(Offload::AtClose::kRestore).ok());
  ExpectSameParameters();
}

}  // namespace
}  // namespace terrace
