// State of optimizers that joined: archives, groups that come later, several of
// one model.
#include <torch/serialize/archive.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/libtorch/offload/joined_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using Group = ::torch::optim::OptimizerParamGroup;

std::string Saved(const ::torch::optim::Optimizer& optimizer) {
  ::torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream bytes;
  archive.save_to(bytes);
  return bytes.str();
}

void Load(const std::string& bytes, ::torch::optim::Optimizer& optimizer) {
  std::istringstream stream(bytes);
  ::torch::serialize::InputArchive archive;
  archive.load_from(stream);
  optimizer.load(archive);
}

class JoinedStateTest : public JoinedTest {
 protected:
  // Both without state.
  void Renew() {
    optimizer_.reset();
    optimizer_ = Join(WithRate());
    reference_.reset();
    reference_ =
        *OffloadedAdamW::Create(*runtime_, TrainedOf(plain_), WithRate());
  }
};

TEST_F(JoinedStateTest, AnArchiveGoesFromAndToAnOptimizerInMemory) {
  MakeJoined(Share(0.2));
  StepBoth(1, 3);
  const std::string ours = Saved(*optimizer_);  // waits
  const std::string theirs = Saved(*reference_);
  Renew();
  Load(ours, *reference_);
  Load(theirs, *optimizer_);
  EXPECT_EQ(optimizer_->offloaded().step(), 3);
  ExpectSameState();
  StepBoth(4, 6);
  ExpectSameState();
  ExpectSameParameters();
  ExpectWithinBudget();
  // It was not the state of before: that of a first step goes elsewhere.
  const std::vector<at::Tensor> resumed = TrainedOf(plain_);
  EXPECT_EQ(reference_->StateOf(resumed[0])->step, 6);
}

TEST_F(JoinedStateTest, LibTorchsArchiveIsLoaded) {
  MakeJoined(Share(0.2));
  ::torch::optim::AdamW theirs(TrainedOf(plain_),
                               ::torch::optim::AdamWOptions(kRate));
  for (int64_t step = 1; step <= 3; ++step) {
    theirs.zero_grad();
    TwoPasses(plain_, step);
    theirs.step();
  }
  {
    const c10::NoGradGuard guard;
    const auto ours = TrainedOf(model_), values = TrainedOf(plain_);
    for (size_t i = 0; i < ours.size(); ++i) ours[i].copy_(values[i]);
  }
  Load(Saved(theirs), *optimizer_);
  EXPECT_EQ(optimizer_->offloaded().step(), 3);
  for (int64_t step = 4; step <= 5; ++step) {
    theirs.zero_grad();
    optimizer_->zero_grad();
    TwoPasses(plain_, step);
    TwoPasses(model_, step);
    theirs.step();
    optimizer_->step();
  }
  const auto ours = TrainedOf(model_), expected = TrainedOf(plain_);
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_LE(Distance(ours[i], expected[i]), 1e-5) << i;
  }
}

TEST_F(JoinedStateTest, AShareGrowsByThatShareOfGradientsAndState) {
  Make(Share(0.5));
  const OffloadStats before = offload_->stats();
  EXPECT_EQ(before.joined_bytes, 0);
  optimizer_ = Join(WithRate());
  // A gradient in whole blocks of 4 KiB and one more, and two moments.
  int64_t all = 0;
  for (const at::Tensor& each : TrainedOf(model_)) {
    const int64_t bytes = 4 * each.numel();
    all += (bytes + 4095) / 4096 * 4096 + 4096 + 2 * bytes;
  }
  const OffloadStats stats = offload_->stats();
  EXPECT_EQ(stats.joined_bytes, all / 2);
  EXPECT_EQ(stats.budget_bytes, before.budget_bytes + all / 2);
  EXPECT_GT(stats.window_bytes, before.window_bytes);
}

TEST_F(JoinedStateTest, GroupsMayComeLaterAndAShareGrows) {
  const auto halves = [](TiedModel& model) {
    const std::vector<at::Tensor> all = TrainedOf(model);
    return std::pair(std::vector<at::Tensor>(all.begin(), all.begin() + 9),
                     std::vector<at::Tensor>(all.begin() + 9, all.end()));
  };
  const auto make = [](auto& home, const std::vector<at::Tensor>& parameters) {
    auto made = OffloadedAdamW::Create(home, parameters, WithRate());
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  };
  Make(Share(0.5));
  optimizer_ = make(*offload_, halves(model_).first);
  reference_.reset();
  reference_ = make(*runtime_, halves(plain_).first);
  StepBoth(1, 2);
  const int64_t before = offload_->stats().joined_bytes;
  const auto later = [] {
    return std::make_unique<::torch::optim::AdamWOptions>(3e-2);
  };
  optimizer_->add_param_group(Group(halves(model_).second, later()));
  reference_->add_param_group(Group(halves(plain_).second, later()));
  StepBoth(3, 4);
  EXPECT_GT(offload_->stats().joined_bytes, before);
  ExpectSameState();
  ExpectSameParameters();
  ExpectWithinBudget();
  EXPECT_TRUE(IsOffloaded(halves(model_).second[0].grad()));
}

TEST_F(JoinedStateTest, GradientsThatAreThereGoBelowToo) {
  Make(Share(0.2));
  TwoPasses(model_, 1);
  TwoPasses(plain_, 1);
  const std::vector<at::Tensor> ours = TrainedOf(model_);
  const std::vector<at::Tensor> expected = TrainedOf(plain_);
  EXPECT_FALSE(IsOffloaded(ours[0].grad()));
  optimizer_ = Join(WithRate());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(IsOffloaded(ours[i].grad()));
    EXPECT_TRUE(ours[i].grad().equal(expected[i].grad())) << i;
  }
  ASSERT_TRUE(optimizer_->TryStep().ok());
  ASSERT_TRUE(reference_->TryStep().ok());
  StepBoth(2, 2);
  ExpectSameParameters();
  ExpectWithinBudget();
}

TEST_F(JoinedStateTest, GradientsOfThawedParametersGoBelow) {
  const auto with_frozen = [](TiedModel& model) {
    std::vector<at::Tensor> all = TrainedOf(model);
    for (const at::Tensor& each : model->layers[3]->parameters()) {
      all.push_back(each);
    }
    return all;
  };
  Make(Share(0.2));
  auto made =
      OffloadedAdamW::Create(*offload_, with_frozen(model_), WithRate());
  ASSERT_TRUE(made.ok()) << made.status();
  optimizer_ = *std::move(made);
  reference_.reset();
  reference_ =
      *OffloadedAdamW::Create(*runtime_, with_frozen(plain_), WithRate());
  StepBoth(1, 1);
  for (TiedModel* const model : {&model_, &plain_}) {
    for (at::Tensor& each : (*model)->layers[3]->parameters()) {
      EXPECT_FALSE(each.requires_grad());
      EXPECT_FALSE(each.grad().defined());
      each.set_requires_grad(true);
    }
  }
  ASSERT_TRUE(optimizer_->Flush().ok());
  optimizer_->zero_grad();
  TwoPasses(model_, 9);
  for (const at::Tensor& each : model_->layers[3]->parameters()) {
    EXPECT_TRUE(IsOffloaded(each.grad()));
  }
  StepBoth(2, 4);
  ExpectSameParameters();
  ExpectSameState();
  ExpectWithinBudget();
}

TEST_F(JoinedStateTest, ParametersOfNoModelMayBeAmongThem) {
  MakeJoined(Share(0.2));
  const at::Tensor own = at::ones({70, 70}).set_requires_grad(true);
  const at::Tensor expected = own.detach().clone().set_requires_grad(true);
  optimizer_->add_param_group(Group({own}));
  reference_->add_param_group(Group({expected}));
  for (int64_t step = 1; step <= 3; ++step) {
    for (const at::Tensor& each : {own, expected}) {
      at::manual_seed(static_cast<uint64_t>(step));
      (each * at::randn({70, 70})).sum().backward();
    }
    EXPECT_FALSE(IsOffloaded(own.grad()));
    TwoPasses(model_, step);
    TwoPasses(plain_, step);
    ASSERT_TRUE(optimizer_->TryStep().ok());
    ASSERT_TRUE(reference_->TryStep().ok());
    optimizer_->zero_grad();
    reference_->zero_grad();
  }
  EXPECT_TRUE(own.equal(expected));
  ExpectSameParameters();
}

// Every other parameter each, with options of their own.
template <typename First, typename Second>
std::vector<std::unique_ptr<OffloadedAdamW>> MakePair(First& first,
                                                      Second& second,
                                                      TiedModel& model) {
  const std::vector<at::Tensor> trained = TrainedOf(model);
  std::vector<std::vector<at::Tensor>> parts(2);
  for (size_t i = 0; i < trained.size(); ++i) {
    parts[i % 2].push_back(trained[i]);
  }
  OptimizerOptions clipped = WithRate(2e-2);
  clipped.max_gradient_norm = 0.1;
  std::vector<std::unique_ptr<OffloadedAdamW>> made;
  made.push_back(*OffloadedAdamW::Create(first, parts[0], WithRate()));
  made.push_back(*OffloadedAdamW::Create(second, parts[1], clipped));
  return made;
}

TEST_F(JoinedStateTest, TwoOfOneModelHaveTheSameBits) {
  for (const double share : {1e-6, 0.3}) {
    SCOPED_TRACE(share);
    at::manual_seed(1);
    model_ = TiedModel();
    plain_ = TiedModel();
    {
      const c10::NoGradGuard guard;
      const auto from = model_->parameters(), to = plain_->parameters();
      for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
    }
    Make(Share(share));
    reference_.reset();
    const auto other = MakeRuntime();
    const auto ours = MakePair(*offload_, *offload_, model_);
    const auto theirs = MakePair(*runtime_, *other, plain_);
    for (int64_t step = 1; step <= 4; ++step) {
      offload_->BeginStep();
      ExpectSame(TwoPasses(model_, step), TwoPasses(plain_, step));
      for (size_t i = 0; i < 2; ++i) {
        for (OffloadedAdamW* const each : {ours[i].get(), theirs[i].get()}) {
          const absl::Status status = each->TryStep();
          ASSERT_TRUE(status.ok()) << status;
          each->zero_grad();
        }
      }
    }
    ExpectSameParameters();
    ExpectWithinBudget();
    // Both are closed with it.
    const absl::Status closed = offload_->Close(Offload::AtClose::kRestore);
    ASSERT_TRUE(closed.ok()) << closed;
    for (const auto& each : ours) {
      EXPECT_TRUE(absl::IsFailedPrecondition(each->TryStep()));
    }
    EXPECT_TRUE(folder_.empty());
  }
}

}  // namespace
}  // namespace terrace
