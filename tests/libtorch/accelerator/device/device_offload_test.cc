// A model on an accelerator that is offloaded: its training has the bits that
// it has on the same device without, and budgets hold.
#include <torch/torch.h>

#include <functional>

#include "terrace/memory_runtime.h"
#include "terrace/torch/offload.h"
#include "terrace/torch/optimizer.h"
#include "tests/libtorch/accelerator/device/accelerator_fixture.h"
#include "tests/libtorch/accelerator/device/registered_memory.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 24; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i),
                                       torch::nn::Linear(64, 64)));
    }
  }
  at::Tensor forward(at::Tensor hidden) {
    for (torch::nn::Linear& layer : layers) {
      hidden = at::gelu(layer->forward(hidden)) + hidden;
    }
    return hidden;
  }

  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Net);

class DeviceOffloadTest : public AcceleratorTest {
 protected:
  static Net MakeNet() {
    torch::manual_seed(5);
    Net net;
    net->to(kDevice);
    return net;
  }
  static int64_t BytesOf(Net& net) {
    int64_t bytes = 0;
    for (const at::Tensor& each : net->parameters()) {
      bytes += static_cast<int64_t>(each.nbytes());
    }
    return bytes;
  }
  OffloadOptions Share(double share) const {
    OffloadOptions options;
    options.hbm_budget_share = share;
    options.memory_budget_share = share;
    options.nvme_paths = {directory_.path()};
    options.threads = 2;
    return options;
  }
  std::unique_ptr<Offload> Offloaded(Net& net, const OffloadOptions& options) {
    auto made = Offload::Create(*net, options);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }
  // Losses of each step, then all parameters, on the CPU.
  static std::vector<at::Tensor> Train(
      Net& net, torch::optim::Optimizer& optimizer,
      const std::function<void()>& begin_step = [] {}) {
    torch::manual_seed(7);
    const at::Tensor batch = torch::randn({8, 64}).to(kDevice);
    std::vector<at::Tensor> left;
    for (int step = 0; step < 4; ++step) {
      begin_step();
      optimizer.zero_grad();
      const at::Tensor loss = net->forward(batch).pow(2).mean();
      loss.backward();
      optimizer.step();
      left.push_back(loss.detach().cpu());
    }
    for (const at::Tensor& each : net->parameters()) {
      left.push_back(each.detach().cpu());
    }
    return left;
  }
  static void ExpectSameBits(const std::vector<at::Tensor>& left,
                             const std::vector<at::Tensor>& right) {
    ASSERT_EQ(left.size(), right.size());
    for (size_t i = 0; i < left.size(); ++i) {
      EXPECT_TRUE(at::equal(left[i], right[i])) << i;
    }
  }

  const TemporaryDirectory directory_;

 private:
  const RegisteredMemory registered_;
};

template <typename Optimizer, typename Options>
std::unique_ptr<Optimizer> Of(Net& net, const Options& options) {
  return std::make_unique<Optimizer>(net->parameters(), options);
}

TEST_F(DeviceOffloadTest, TrainsToTheBitsOfTheSameDevice) {
  Net plain = MakeNet();
  Net net = MakeNet();
  const auto offload = Offloaded(net, Share(0.3));
  ASSERT_NE(offload, nullptr);
  const torch::optim::SGDOptions options =
      torch::optim::SGDOptions(1e-3).momentum(0.9);
  const auto reference = Of<torch::optim::SGD>(plain, options);
  const auto optimizer = Of<torch::optim::SGD>(net, options);
  const auto expected = Train(plain, *reference);
  ExpectSameBits(Train(net, *optimizer, [&] { offload->BeginStep(); }),
                 expected);
  const OffloadStats stats = offload->stats();
  EXPECT_LT(stats.budget_bytes, BytesOf(net) / 2);
  EXPECT_GT(stats.hook.fetches, 0);
  for (const TierStats& tier : stats.runtime.tiers) {
    if (tier.kind != TierKind::kHbm) continue;
    EXPECT_LE(tier.peak_bytes, stats.budget_bytes);
    EXPECT_EQ(tier.name, "hbm:testdev:0");
  }
  EXPECT_TRUE(offload->error().ok()) << offload->error();
  const absl::Status closed = offload->Close(Offload::AtClose::kRestore);
  EXPECT_TRUE(closed.ok()) << closed;
  for (const at::Tensor& each : net->parameters()) {
    EXPECT_EQ(each.device(), kDevice);
  }
}

TEST_F(DeviceOffloadTest, ActivationsGoBelowToo) {
  Net plain = MakeNet();
  Net net = MakeNet();
  OffloadOptions options = Share(0.5);
  options.activations = true;
  options.activations_above_bytes = 1024;
  const auto offload = Offloaded(net, options);
  ASSERT_NE(offload, nullptr);
  const torch::optim::SGDOptions sgd(1e-3);
  const auto reference = Of<torch::optim::SGD>(plain, sgd);
  const auto expected = Train(plain, *reference);
  const auto optimizer = Of<torch::optim::SGD>(net, sgd);
  std::optional<ActivationScope> scope;
  const auto trained = Train(net, *optimizer, [&] {
    offload->BeginStep();
    scope.emplace(offload->SaveActivations());
  });
  scope.reset();
  ExpectSameBits(trained, expected);
  EXPECT_GT(offload->stats().hook.saved.tensors, 0);
}

// Beside a step in memory to the bit, and beside LibTorch's own.
// What a saved tensor's readers on other streams were ordered after is its
// maker, and not the copy that takes it into the window.
TEST_F(DeviceOffloadTest, OtherStreamsReadWhatIsJustSaved) {
  Net net = MakeNet();
  OffloadOptions options = Share(0.5);
  options.activations = true;
  options.activations_above_bytes = 1024;
  const auto offload = Offloaded(net, options);
  ASSERT_NE(offload, nullptr);
  const at::Tensor input = at::ones({8, 64}, OnDevice()).requires_grad_();
  const ActivationScope scope = offload->SaveActivations();
  for (int i = 0; i < 10; ++i) {
    const at::Tensor made = input * (i + 1);
    Order(kHome, kSide);
    const at::Tensor sine = made.sin();  // saves what was made
    at::Tensor sum;
    {
      const c10::StreamGuard guard(kSide);
      sum = made.detach() + 1;
    }
    Order(kSide, kHome);
    EXPECT_EQ(sum.cpu().mean().item<float>(), i + 2);
    sine.sum().backward();
  }
  EXPECT_GT(offload->stats().hook.saved.tensors, 0);
}

TEST_F(DeviceOffloadTest, AnAdamWJoins) {
  Net plain = MakeNet();
  const auto own = Of<torch::optim::AdamW>(plain, torch::optim::AdamWOptions());
  const auto expected = Train(plain, *own);
  Net in_memory = MakeNet();
  const auto threads = ThreadPool::Create(2);
  ASSERT_TRUE(threads.ok());
  const auto runtime = MemoryRuntime::Create(*threads);
  ASSERT_TRUE(runtime->Reserve(4 << 20).ok());
  auto beside = OffloadedAdamW::Create(*runtime, in_memory->parameters(), {});
  ASSERT_TRUE(beside.ok()) << beside.status();
  const auto stepped = Train(in_memory, **beside);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::allclose(stepped[i], expected[i], 1e-3, 1e-4)) << i;
  }
  for (const bool overlap : {false, true}) {
    SCOPED_TRACE(overlap);
    Net net = MakeNet();
    const auto offload = Offloaded(net, Share(0.5));
    ASSERT_NE(offload, nullptr);
    auto made = OffloadedAdamW::Create(*offload, net->parameters(), {});
    ASSERT_TRUE(made.ok()) << made.status();
    (*made)->set_overlap(overlap);
    ExpectSameBits(Train(net, **made, [&] { offload->BeginStep(); }), stepped);
    EXPECT_TRUE(offload->error().ok()) << offload->error();
  }
}

TEST_F(DeviceOffloadTest, AnAdamWStepsInBackward) {
  Net in_memory = MakeNet();
  const auto threads = ThreadPool::Create(2);
  ASSERT_TRUE(threads.ok());
  const auto runtime = MemoryRuntime::Create(*threads);
  ASSERT_TRUE(runtime->Reserve(4 << 20).ok());
  auto beside = OffloadedAdamW::Create(*runtime, in_memory->parameters(), {});
  ASSERT_TRUE(beside.ok()) << beside.status();
  const auto stepped = Train(in_memory, **beside);
  Net net = MakeNet();
  const auto offload = Offloaded(net, Share(0.5));
  ASSERT_NE(offload, nullptr);
  auto made = OffloadedAdamW::Create(*offload, net->parameters(), {});
  ASSERT_TRUE(made.ok()) << made.status();
  const absl::Status set = (*made)->SetStepInBackward(1);
  ASSERT_TRUE(set.ok()) << set;
  ExpectSameBits(Train(net, **made, [&] { offload->BeginStep(); }), stepped);
}

TEST_F(DeviceOffloadTest, TiersSayTheSame) {
  Net net = MakeNet();
  OffloadOptions options;
  options.tiers = {*ParseTier("hbm:testdev:0=64KiB"), *ParseTier("dram=96KiB"),
                   *ParseTier("nvme:" + directory_.path())};
  const auto offload = Offloaded(net, options);
  ASSERT_NE(offload, nullptr);
  EXPECT_EQ(offload->stats().budget_bytes, 64 << 10);
}

TEST_F(DeviceOffloadTest, WhatCannotBeIsSaid) {
  Net net = MakeNet();
  const auto refused = [&](const OffloadOptions& options) {
    return std::string(Offload::Create(*net, options).status().message());
  };
  EXPECT_THAT(refused({.nvme_paths = {directory_.path()}}),
              HasSubstr("the model is on testdev:0: its tiers begin with"));
  EXPECT_THAT(refused({.tiers = {*ParseTier("hbm:testdev:1=1MiB"),
                                 *ParseTier("dram=1MiB")}}),
              HasSubstr("tier 'hbm:testdev:1': the model is on testdev:0"));
  EXPECT_THAT(refused({.tiers = {*ParseTier("hbm:testdev:0=16KiB"),
                                 *ParseTier("dram=1MiB")}}),
              HasSubstr("is below the minimum of"));
  EXPECT_THAT(refused({.tiers = {*ParseTier("hbm:testdev:0=64KiB"),
                                 *ParseTier("dram=64KiB")}}),
              HasSubstr("there is no tier below for the rest"));
  net->layers[1]->to(kOther);
  OffloadOptions two;
  two.hbm_budget_share = 0.5;
  EXPECT_THAT(refused(two), HasSubstr("'layer1.weight' is on testdev:1"));
  Net on_cpu;
  EXPECT_THAT(std::string(Offload::Create(*on_cpu, two).status().message()),
              HasSubstr("the model is in CPU memory"));
}

}  // namespace
}  // namespace terrace
