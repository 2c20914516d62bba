// What OffloadedAdamW does not step, and that it says which and why before
// anything has changed.
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/torch_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using ::torch::optim::AdamWOptions;
using ::torch::optim::OptimizerParamGroup;

// The text of an InvalidArgument, else the whole status.
std::string Text(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? std::string(status.message())
                                         : status.ToString();
}

class TorchRefusal : public testing::Test {
 protected:
  std::string Refused(std::vector<at::Tensor> parameters) {
    return Text(
        OffloadedAdamW::Create(*runtime_, std::move(parameters), SmallChunks())
            .status());
  }
  std::unique_ptr<OffloadedAdamW> Make(std::vector<at::Tensor> parameters) {
    auto made =
        OffloadedAdamW::Create(*runtime_, std::move(parameters), SmallChunks());
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  const std::unique_ptr<Runtime> runtime_ = MakeRuntime();
  const at::Tensor good_ = at::ones({2, 3}).set_requires_grad(true);
};

TEST_F(TorchRefusal, ParametersThatCannotBeStepped) {
  EXPECT_THAT(Refused({good_, at::ones({2}, at::kComplexFloat)}),
              HasSubstr("parameter 1 is ComplexFloat"));
  EXPECT_THAT(Refused({at::ones({2}, at::kDouble)}),
              HasSubstr("parameter 0 is Double; only float32, bfloat16 and "
                        "float16 are supported"));
  EXPECT_THAT(Refused({at::ones({2}, at::kLong)}), HasSubstr("Long"));
  EXPECT_THAT(Refused({at::eye(3).to_sparse()}), HasSubstr("Sparse"));
  EXPECT_THAT(Refused({good_, good_ * 2}), HasSubstr("parameter 1 is no leaf"));
  EXPECT_THAT(Refused({at::Tensor()}), HasSubstr("undefined"));
  EXPECT_THAT(Refused({at::ones({1}).expand({5})}), HasSubstr("share memory"));
  EXPECT_THAT(Refused({at::empty({2}, at::TensorOptions(at::kMeta))}),
              HasSubstr("is on meta"));
}

TEST_F(TorchRefusal, TheSameElementsTwice) {
  EXPECT_THAT(Refused({good_, at::ones({1}), good_}),
              HasSubstr("parameters 0 and 2 are the same tensor"));
  const at::Tensor flat = at::ones({10});
  EXPECT_THAT(Refused({flat.slice(0, 0, 6).detach(), good_,
                       flat.slice(0, 5, 10).detach()}),
              HasSubstr("parameters 0 and 2 overlap in memory"));
}

TEST_F(TorchRefusal, ViewsThatShareElements) {
  const at::Tensor matrix = at::ones({6, 8});
  const auto columns = [&](int64_t from, int64_t to, int64_t step) {
    return matrix.slice(1, from, to, step).detach();
  };
  EXPECT_THAT(Refused({columns(0, 8, 2), columns(3, 8, 2), columns(3, 4, 1)}),
              HasSubstr("parameters 1 and 2 overlap in memory"));
  EXPECT_THAT(Refused({matrix.t().detach(), columns(7, 8, 1)}),
              HasSubstr("parameters 0 and 1 overlap in memory"));
  EXPECT_THAT(Refused({columns(0, 4, 1), columns(3, 8, 1)}),
              HasSubstr("parameters 0 and 1 overlap in memory"));
  EXPECT_THAT(Refused({columns(0, 4, 1), columns(7, 8, 1),
                       matrix.view(at::kHalf).slice(1, 6, 9).detach()}),
              HasSubstr("parameters 0 and 2 overlap in memory"));
}

TEST_F(TorchRefusal, ViewsThatShareNoElementAreStepped) {
  const at::Tensor matrix = at::ones({6, 8});
  std::vector<at::Tensor> parameters = {
      matrix.slice(1, 0, 4, 2).detach(), matrix.slice(1, 1, 4, 2).detach(),
      matrix.slice(1, 4, 6).detach(),
      matrix.slice(1, 6, 8).view(at::kHalf).detach(),
      at::ones({5}).slice(0, 5).detach()};
  const at::Tensor flat = at::ones({10});
  parameters.push_back(flat.slice(0, 0, 5).detach());
  parameters.push_back(flat.slice(0, 5, 10).detach());
  auto optimizer = Make(parameters);
  for (at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = at::ones_like(parameter);
  }
  EXPECT_EQ(Text(optimizer->TryStep()), "OK");
  EXPECT_TRUE((matrix.slice(1, 0, 6) < 1).all().item<bool>());
  EXPECT_TRUE((flat < 1).all().item<bool>());
}

TEST_F(TorchRefusal, AParameterWhoseDataMovesOntoAnothers) {
  const at::Tensor other = at::ones({2, 3}).set_requires_grad(true);
  auto optimizer = Make({good_, other});
  for (const at::Tensor& parameter : {good_, other}) {
    parameter.mutable_grad() = at::ones({2, 3});
  }
  EXPECT_EQ(Text(optimizer->TryStep()), "OK");
  other.set_data(good_.detach());
  const at::Tensor before = good_.detach().clone();
  EXPECT_THAT(Text(optimizer->TryStep()),
              HasSubstr("parameters 0 and 1 overlap in memory"));
  EXPECT_TRUE(SameBits(good_, before));
}

TEST_F(TorchRefusal, AGroupThatOverlapsAndIsAddedLater) {
  auto optimizer = Make({good_});
  optimizer->add_param_group(OptimizerParamGroup({good_.detach()[1]}));
  good_.mutable_grad() = at::ones({2, 3});
  EXPECT_THAT(Text(optimizer->TryStep()),
              HasSubstr("parameters 0 and 1 overlap in memory"));
}

TEST_F(TorchRefusal, AParameterThatIsAddedTwiceLater) {
  auto optimizer = Make({good_});
  optimizer->add_param_group(OptimizerParamGroup({good_}));
  EXPECT_THAT(Text(optimizer->TryStep()),
              HasSubstr("parameters 0 and 1 are the same tensor"));
}

TEST_F(TorchRefusal, GradientsThatCannotBeTaken) {
  const at::Tensor half = at::ones({4}, at::kHalf).set_requires_grad(true);
  auto optimizer = Make({good_, half});
  const at::Tensor before = good_.detach().clone();
  good_.mutable_grad() = at::ones({2, 3});
  const auto refused = [&](const at::Tensor& parameter,
                           const at::Tensor& gradient) {
    // Past LibTorch's own checks, as a program that sets .data does.
    parameter.unsafeGetTensorImpl()->mutable_grad() = gradient;
    const std::string text = Text(optimizer->TryStep());
    EXPECT_TRUE(SameBits(good_, before));
    return text;
  };
  EXPECT_THAT(refused(good_, at::eye(3).slice(0, 0, 2).to_sparse()),
              HasSubstr("the gradient of parameter 0 is Sparse"));
  EXPECT_THAT(refused(good_, at::ones({3, 2})),
              HasSubstr("the gradient of parameter 0 is [3, 2] of Float"));
  EXPECT_THAT(refused(good_, at::ones({2, 3}, at::kHalf)), HasSubstr("Half"));
  EXPECT_THAT(refused(good_, at::ones({2, 3}, at::kDouble)),
              HasSubstr("Double"));
  good_.unsafeGetTensorImpl()->mutable_grad() = at::ones({2, 3});
  EXPECT_THAT(refused(half, at::ones({4}, at::kBFloat16)),
              HasSubstr("the gradient of parameter 1"));
  EXPECT_EQ(optimizer->offloaded().step(), 0);
  half.unsafeGetTensorImpl()->mutable_grad() = at::ones({4});  // fp32: fine
  EXPECT_TRUE(optimizer->TryStep().ok());
}

TEST_F(TorchRefusal, AParameterThatBecameAnother) {
  at::Tensor weight = at::ones({4}).set_requires_grad(true);
  auto optimizer = Make({weight});
  weight.set_data(at::ones({5}));
  weight.mutable_grad() = at::ones({5});
  EXPECT_THAT(Text(optimizer->TryStep()),
              HasSubstr("parameter 0 was 4 elements of fp32 and is 5"));
  // Other memory of the same kind is followed.
  weight.mutable_grad().reset();
  weight.set_data(at::full({4}, 3.0));
  weight.mutable_grad() = at::ones({4});
  EXPECT_TRUE(optimizer->TryStep().ok());
  EXPECT_LT(weight.max().item<float>(), 3);
}

TEST_F(TorchRefusal, OptionsThatAreNotAdamWs) {
  const auto group = [&](std::unique_ptr<::torch::optim::OptimizerOptions> o) {
    return std::vector<OptimizerParamGroup>{
        OptimizerParamGroup({good_}, std::move(o))};
  };
  const auto refused = [&](std::vector<OptimizerParamGroup> groups) {
    return Text(
        OffloadedAdamW::Create(*runtime_, std::move(groups), SmallChunks())
            .status());
  };
  EXPECT_THAT(refused(group(std::make_unique<::torch::optim::AdamOptions>())),
              HasSubstr("parameter group 0 has options of another type"));
  EXPECT_THAT(refused(group(std::make_unique<AdamWOptions>(
                  AdamWOptions().amsgrad(true)))),
              HasSubstr("amsgrad"));
  auto optimizer = Make({good_});
  auto& options =
      static_cast<AdamWOptions&>(optimizer->param_groups()[0].options());
  good_.mutable_grad() = at::ones({2, 3});
  options.betas({1.0, 0.999});
  EXPECT_THAT(Text(optimizer->TryStep()), HasSubstr("beta1 is 1"));
  options.betas({0.9, 0.999});
  options.amsgrad(true);
  EXPECT_THAT(Text(optimizer->TryStep()), HasSubstr("amsgrad"));
  options.amsgrad(false);
  EXPECT_THAT(Text(optimizer->TryStep({.learning_rate = 1.0})),
              HasSubstr("parameter groups"));
  EXPECT_THROW(
      {
        options.eps(-1);
        optimizer->step();
      },
      c10::Error);
}

TEST_F(TorchRefusal, ABudgetThatIsTooSmallIsNamed) {
  const auto runtime = MakeRuntime(32 << 10);
  const auto made =
      OffloadedAdamW::Create(*runtime, MakeParameters(), SmallChunks());
  EXPECT_TRUE(absl::IsResourceExhausted(made.status())) << made.status();
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("minimum of"));
}

}  // namespace
}  // namespace terrace
