// Training with an optimizer that joined has the bits of the same in memory, in
// the budget that was given, and is near LibTorch's own.
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libtorch/step/late/update_net.h"
#include "tests/libtorch/offload/joined_fixture.h"

namespace terrace {
namespace {

// By the share of the parameters, and whether updates go on after a step.
class JoinedTrainingTest
    : public JoinedTest,
      public testing::WithParamInterface<std::tuple<double, bool>> {
 protected:
  double share() const { return std::get<0>(GetParam()); }
  bool overlaps() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Budgets, JoinedTrainingTest,
                         testing::Combine(testing::Values(1e-6, 1.0 / 3),
                                          testing::Bool()));

TEST_P(JoinedTrainingTest, HasTheBitsOfTheSameInMemory) {
  MakeJoined(Share(share()));
  const OffloadStats before = offload_->stats();
  EXPECT_GT(before.joined_bytes, 0);
  if (!overlaps()) optimizer_->set_overlap(false);
  StepBoth(1, 5);
  ExpectSameState();
  ExpectSameParameters();
  ExpectWithinBudget();
  const OffloadStats stats = offload_->stats();
  EXPECT_EQ(stats.budget_bytes, before.budget_bytes);
  EXPECT_LT(stats.budget_bytes, kModelBytes * 4);  // of that in memory
  EXPECT_GT(stats.runtime.bytes_read(), 0);
  EXPECT_GT(stats.runtime.bytes_written(), 0);
  EXPECT_EQ(optimizer_->offloaded().step(), 5);
  const absl::Status closed = offload_->Close(Offload::AtClose::kRestore);
  ASSERT_TRUE(closed.ok()) << closed;
  EXPECT_TRUE(folder_.empty());
  ExpectSameParameters();
}

TEST_P(JoinedTrainingTest, IsNearLibTorchsOwn) {
  MakeJoined(Share(share()));
  if (!overlaps()) optimizer_->set_overlap(false);
  ::torch::optim::AdamW theirs(TrainedOf(plain_),
                               ::torch::optim::AdamWOptions(kRate));
  for (int64_t step = 1; step <= 5; ++step) {
    optimizer_->zero_grad();
    theirs.zero_grad();
    const auto ours = TwoPasses(model_, step);
    const auto expected = TwoPasses(plain_, step);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_LE(Distance(ours[i], expected[i]), 1e-4) << step;
    }
    optimizer_->step();
    theirs.step();
  }
  const auto ours = TrainedOf(model_), expected = TrainedOf(plain_);
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_LE(Distance(ours[i], expected[i]), 1e-4) << i;
  }
}

TEST_P(JoinedTrainingTest, GradientsAreBelowAndFreedAsTheyAreUsed) {
  MakeJoined(Share(share()));
  if (!overlaps()) optimizer_->set_overlap(false);
  const int64_t alone = offload_->stats().hook.managed_tensors;
  const std::vector<at::Tensor> trained = TrainedOf(model_);
  for (int64_t step = 1; step <= 3; ++step) {
    TwoPasses(model_, step);
    TwoPasses(plain_, step);
    for (const at::Tensor& each : trained) {
      EXPECT_TRUE(IsOffloaded(each.grad()));
    }
    EXPECT_EQ(offload_->stats().hook.managed_tensors,
              alone + static_cast<int64_t>(trained.size()));
    const auto expected = TrainedOf(plain_);
    for (size_t i = 0; i < trained.size(); ++i) {
      EXPECT_TRUE(trained[i].grad().equal(expected[i].grad())) << i;
      const auto lease =
          offload_->MakeLease(trained[i].grad(), Offload::Access::kRead);
      ASSERT_TRUE(lease.ok()) << lease.status();
      EXPECT_EQ(static_cast<const void*>(lease->data().data()),
                trained[i].grad().const_data_ptr());
    }
    ASSERT_TRUE(optimizer_->TryStep().ok());
    ASSERT_TRUE(reference_->TryStep().ok());
    optimizer_->zero_grad();
    reference_->zero_grad();
    ASSERT_TRUE(optimizer_->Flush().ok());
    EXPECT_EQ(offload_->stats().hook.managed_tensors, alone);
  }
  ExpectSameParameters();
  ExpectWithinBudget();
}

TEST_P(JoinedTrainingTest, GradientsThatAreZeroedAndWrittenToGoOn) {
  MakeJoined(Share(share()));
  if (!overlaps()) optimizer_->set_overlap(false);
  for (int64_t step = 1; step <= 3; ++step) {
    for (auto [model, optimizer] : {std::pair(&model_, optimizer_.get()),
                                    std::pair(&plain_, reference_.get())}) {
      optimizer->zero_grad(/*set_to_none=*/false);
      TwoPasses(*model, step);
      for (const at::Tensor& each : TrainedOf(*model)) {
        each.grad().mul_(0.5);
      }
      const absl::Status status =
          optimizer->TryStep({.loss_scale = 4, .max_gradient_norm = 0.01});
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  ExpectSameParameters();
  ExpectSameState();
  ExpectWithinBudget();
}

TEST_F(JoinedTest, AdamHasTheSameBits) {
  Make(Share(0.2));
  OptimizerOptions options = WithRate();
  options.adam.weight_decay = 0.1;
  auto joined = OffloadedAdam::Create(*offload_, TrainedOf(model_), options);
  ASSERT_TRUE(joined.ok()) << joined.status();
  reference_.reset();  // its name is taken else
  auto plain = OffloadedAdam::Create(*runtime_, TrainedOf(plain_), options);
  ASSERT_TRUE(plain.ok()) << plain.status();
  for (int64_t step = 1; step <= 3; ++step) {
    (*joined)->zero_grad();
    (*plain)->zero_grad();
    ExpectSame(TwoPasses(model_, step), TwoPasses(plain_, step));
    (*joined)->step();
    (*plain)->step();
  }
  ExpectSameParameters();
}

TEST_F(JoinedTest, WhereAllIsInMemorySoIsTheState) {
  MakeJoined({});
  StepBoth(1, 3);
  ExpectSameState();
  ExpectSameParameters();
  const OffloadStats stats = offload_->stats();
  EXPECT_TRUE(stats.runtime.paths().empty());
  EXPECT_EQ(stats.joined_bytes, 0);
  EXPECT_FALSE(IsOffloaded(TrainedOf(model_)[0].grad()));
  ASSERT_TRUE(offload_->Close(Offload::AtClose::kRestore).ok());
  ExpectSameParameters();
}

class JoinedDefaultTest : public JoinedTest {
 protected:
  // It waits for the update.
  void ExpectEachLeaseIsUpdated() {
    const std::vector<at::Tensor> ours = TrainedOf(model_);
    const std::vector<at::Tensor> expected = TrainedOf(plain_);
    for (size_t i = ours.size(); i-- > 0;) {
      const auto lease = offload_->MakeLease(ours[i], Offload::Access::kRead);
      ASSERT_TRUE(lease.ok()) << lease.status();
      EXPECT_EQ(std::memcmp(ours[i].const_data_ptr(),
                            expected[i].const_data_ptr(), ours[i].nbytes()),
                0)
          << i;
    }
  }
};

TEST_F(JoinedDefaultTest, UpdatesGoOnAfterAStepAsADefault) {
  MakeJoined(Share(0.2));
  StepBoth(1, 1);
  for (const bool is_default : {true, false}) {
    if (!is_default) optimizer_->set_overlap(false);
    optimizer_->zero_grad();
    reference_->zero_grad();
    const int64_t step = is_default ? 2 : 3;
    ExpectSame(TwoPasses(model_, step), TwoPasses(plain_, step));
    ASSERT_TRUE(reference_->TryStep().ok());
    const absl::Status status = optimizer_->TryStep();
    ASSERT_TRUE(status.ok()) << status;
    // Until an operation, or whatever asks for them, hears that they ended.
    EXPECT_EQ(UpdateNet::Get().pending().size(), is_default ? 1u : 0u);
    ExpectEachLeaseIsUpdated();
    ASSERT_TRUE(optimizer_->Flush().ok());
    EXPECT_TRUE(UpdateNet::Get().pending().empty());
    ExpectSameParameters();
  }
}

// Layers of 66 kB, in 16 bits or 32; some out of order.
::torch::nn::Sequential MakeLayers(at::ScalarType dtype) {
  at::manual_seed(7);
  ::torch::nn::Sequential layers;
  for (int i = 0; i < 12; ++i) {
    ::torch::nn::Linear linear(128, 128);
    if (i % 4 == 1) {
      linear->weight.set_data(linear->weight.detach().t());
    }
    layers->push_back(linear);
    layers->push_back(::torch::nn::Tanh());
  }
  layers->to(dtype);
  return layers;
}

std::vector<at::Tensor> TrainLayers(::torch::nn::Sequential& layers,
                                    OffloadedAdamW& optimizer) {
  at::manual_seed(8);
  std::vector<at::Tensor> losses;
  const at::ScalarType dtype = layers->parameters()[0].scalar_type();
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss =
        layers->forward(at::randn({4, 128}).to(dtype)).square().mean();
    loss.backward();
    losses.push_back(loss.detach().clone());
    const absl::Status status = optimizer.TryStep({.loss_scale = 2});
    EXPECT_TRUE(status.ok()) << status;
  }
  for (const at::Tensor& each : layers->parameters()) {
    losses.push_back(each.detach().clone());
  }
  return losses;
}

TEST_F(JoinedTest, ABudgetInBytesIsForAllOfItInEveryDtype) {
  reference_.reset();  // its name is taken else
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t budget : {448 << 10, 1 << 20}) {
      SCOPED_TRACE(absl::StrCat(toString(dtype), " ", budget));
      ::torch::nn::Sequential plain = MakeLayers(dtype);
      auto reference =
          *OffloadedAdamW::Create(*runtime_, plain->parameters(), WithRate());
      const auto expected = TrainLayers(plain, *reference);
      ::torch::nn::Sequential layers = MakeLayers(dtype);
      auto offload = Offload::Create(*layers, Bytes(budget));
      ASSERT_TRUE(offload.ok()) << offload.status();
      auto joined =
          OffloadedAdamW::Create(**offload, layers->parameters(), WithRate());
      ASSERT_TRUE(joined.ok()) << joined.status();
      ExpectSame(TrainLayers(layers, **joined), expected);
      const OffloadStats stats = (*offload)->stats();
      EXPECT_LE(stats.budget_bytes, budget);
      EXPECT_LE(stats.runtime.host.peak_bytes, budget);
      EXPECT_GT(stats.runtime.bytes_written(), 0);
    }
  }
}

}  // namespace
}  // namespace terrace
