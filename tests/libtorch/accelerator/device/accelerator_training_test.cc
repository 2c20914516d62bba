// Models are trained on the accelerator as on the CPU, bit for bit.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "tests/libtorch/accelerator/device/accelerator_fixture.h"

namespace terrace {
namespace {

using torch::nn::Module;
using AcceleratorTraining = AcceleratorTest;

struct Transformer : Module {
  Transformer() {
    embedding = register_module("embedding", torch::nn::Embedding(32, 16));
    encoder = register_module(
        "encoder", torch::nn::TransformerEncoderLayer(
                       torch::nn::TransformerEncoderLayerOptions(16, 2)
                           .dim_feedforward(24)
                           .dropout(0)));
    head = register_module("head", torch::nn::Linear(16, 32));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return head->forward(encoder->forward(embedding->forward(tokens)));
  }

  torch::nn::Embedding embedding = nullptr;
  torch::nn::TransformerEncoderLayer encoder = nullptr;
  torch::nn::Linear head = nullptr;
};

struct Convolutions : Module {
  Convolutions() {
    first = register_module(
        "first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(6));
    last = register_module("last", torch::nn::Linear(6 * 9, 4));
  }
  at::Tensor forward(const at::Tensor& images) {
    const at::Tensor hidden = at::max_pool2d(
        at::relu(norm->forward(first->forward(images))), /*kernel_size=*/2);
    return last->forward(hidden.flatten(1));
  }

  torch::nn::Conv2d first = nullptr;
  torch::nn::BatchNorm2d norm = nullptr;
  torch::nn::Linear last = nullptr;
};

at::Tensor Batch(const Transformer&) { return torch::randint(32, {8, 4}); }
at::Tensor Batch(const Convolutions&) { return torch::randn({4, 3, 8, 8}); }

at::Tensor Loss(Transformer& model, const at::Tensor& batch) {
  return at::cross_entropy_loss(model.forward(batch).flatten(0, 1),
                                batch.flatten());
}
at::Tensor Loss(Convolutions& model, const at::Tensor& batch) {
  return model.forward(batch).pow(2).mean();
}

// All parameters and buffers after some steps, on the CPU.
template <typename Model, typename Optimizer, typename Options>
std::vector<at::Tensor> Train(c10::Device device, const Options& options) {
  torch::manual_seed(5);
  Model model;
  const at::Tensor batch = Batch(model).to(device);
  model.to(device);
  Optimizer optimizer(model.parameters(), options);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    Loss(model, batch).backward();
    torch::nn::utils::clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
  }
  std::vector<at::Tensor> trained;
  for (const at::Tensor& tensor : model.parameters()) {
    trained.push_back(tensor.detach().cpu());
  }
  for (const at::Tensor& tensor : model.buffers()) {
    trained.push_back(tensor.cpu());
  }
  return trained;
}

void ExpectEqual(const std::vector<at::Tensor>& own,
                 const std::vector<at::Tensor>& cpu) {
  ASSERT_EQ(own.size(), cpu.size());
  for (size_t at = 0; at < own.size(); ++at) {
    EXPECT_TRUE(own[at].equal(cpu[at])) << at;
  }
}

TEST_F(AcceleratorTraining, ATransformerIsTrainedToTheSameBits) {
  const torch::optim::AdamWOptions options(1e-2);
  ExpectEqual(Train<Transformer, torch::optim::AdamW>(kDevice, options),
              Train<Transformer, torch::optim::AdamW>(at::kCPU, options));
}

// As a GPU's: what holds parameters holds those of the device.
TEST_F(AcceleratorTraining, AModuleIsMovedInPlace) {
  torch::nn::Linear model(3, 2);
  const at::Tensor held = model->weight;
  model->to(kDevice);
  EXPECT_EQ(held.device(), kDevice);
  held.data().zero_();
  EXPECT_EQ(model->weight.sum().item<float>(), 0);
}

TEST_F(AcceleratorTraining, ConvolutionsAreTrainedToTheSameBits) {
  const auto options = torch::optim::SGDOptions(1e-2).momentum(0.9);
  ExpectEqual(Train<Convolutions, torch::optim::SGD>(kDevice, options),
              Train<Convolutions, torch::optim::SGD>(at::kCPU, options));
}

TEST_F(AcceleratorTraining, ASideStreamTrainsAlike) {
  const torch::optim::AdamWOptions options(1e-2);
  const auto cpu = Train<Transformer, torch::optim::AdamW>(at::kCPU, options);
  const c10::StreamGuard guard(kSide);
  ExpectEqual(Train<Transformer, torch::optim::AdamW>(kDevice, options), cpu);
}

TEST_F(AcceleratorTraining, AutocastCastsWhatItsListsName) {
  at::autocast::set_autocast_enabled(kDevice.type(), true);
  at::autocast::set_autocast_dtype(kDevice.type(), at::kBFloat16);
  const at::Tensor own = at::ones({4, 4}, OnDevice());
  EXPECT_EQ(own.mm(own).scalar_type(), at::kBFloat16);
  EXPECT_EQ(own.mm(own).exp().scalar_type(), at::kFloat);
  EXPECT_EQ((own + own).scalar_type(), at::kFloat);
  at::autocast::set_autocast_enabled(kDevice.type(), false);
  at::autocast::clear_cache();
  EXPECT_EQ(own.mm(own).scalar_type(), at::kFloat);
}

TEST_F(AcceleratorTraining, GradientsAreUnscaledAndTheScaleUpdated) {
  std::vector<at::Tensor> gradients{at::full({3}, 8.f, OnDevice()),
                                    at::full({2}, 4.f, OnDevice())};
  at::Tensor found = at::zeros({1}, OnDevice());
  const at::Tensor inverse = at::full({1}, 0.25f, OnDevice());
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse);
  EXPECT_EQ(gradients[0].sum().item<float>(), 6);
  EXPECT_EQ(found.item<float>(), 0);
  gradients[1].div_(0);
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse);
  EXPECT_EQ(found.item<float>(), 1);
  at::Tensor scale = at::full({1}, 16.f, OnDevice());
  at::Tensor tracker = at::zeros({1}, OnDevice(at::kInt));
  at::_amp_update_scale_(scale, tracker, found, 2.0, 0.5, 100);
  EXPECT_EQ(scale.item<float>(), 8);
}

at::Generator Generator() {
  return at::globalContext().defaultGenerator(AcceleratorDevice(0));
}

TEST_F(AcceleratorTraining, RandomNumbersDependOnTheSeedAndTheOrderOfCalls) {
  const auto draw = [](uint64_t seed) {
    Generator().set_current_seed(seed);
    const at::Tensor first = at::rand({100}, OnDevice()).cpu();
    const c10::StreamGuard guard(kSide);
    return at::cat({first, at::randn({100}, OnDevice()).cpu(),
                    at::dropout(at::ones({100}, OnDevice()), 0.5, true).cpu(),
                    at::randperm(100, OnDevice(at::kLong)).cpu()});
  };
  EXPECT_TRUE(draw(3).equal(draw(3)));
  EXPECT_FALSE(draw(3).equal(draw(4)));
  const at::Generator own = Generator().clone();
  const at::Tensor drawn = at::rand({9}, own, OnDevice()).cpu();
  EXPECT_TRUE(at::rand({9}, OnDevice()).cpu().equal(drawn));
  const at::Tensor state = Generator().get_state();
  const at::Tensor next = at::rand({9}, OnDevice()).cpu();
  Generator().set_state(state);
  EXPECT_TRUE(at::rand({9}, OnDevice()).cpu().equal(next));
}

}  // namespace
}  // namespace terrace
