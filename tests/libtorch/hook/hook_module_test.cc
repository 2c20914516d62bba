// Modules whose parameters are below: what copies, saves, loads and scripts
// them.
#include <torch/script.h>
#include <torch/torch.h>

#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

namespace nn = ::torch::nn;

using testing::HasSubstr;
using testing::StartsWith;

class HookModuleTest : public HookTest {
 protected:
  void SetUp() override {
    Make(64 << 10);
    for (const auto& parameter : model_->named_parameters()) {
      expected_.push_back(parameter.value().detach().clone());
      Managed(parameter.key(), parameter.value());
    }
    EvictFromMemory();
    for (const at::Tensor& each : model_->parameters()) {
      ASSERT_TRUE(IsCold(each));
    }
  }
  void ExpectValues(const std::vector<at::Tensor>& parameters) const {
    ASSERT_EQ(parameters.size(), expected_.size());
    for (size_t i = 0; i < expected_.size(); ++i) {
      EXPECT_TRUE(parameters[i].detach().equal(expected_[i])) << i;
    }
  }

  nn::Sequential model_{nn::Linear(20, 30), nn::Tanh(), nn::Linear(30, 10)};

 private:
  std::vector<at::Tensor> expected_;
};

TEST_F(HookModuleTest, ACopyHasTheValuesAndBytesOfItsOwn) {
  const auto copy =
      std::dynamic_pointer_cast<nn::SequentialImpl>(model_->clone());
  ASSERT_NE(copy, nullptr);
  hook().EvictAll();
  for (const at::Tensor& each : copy->parameters()) EXPECT_FALSE(IsCold(each));
  ExpectValues(copy->parameters());
  ExpectValues(model_->parameters());
}

// torch::save reads no bytes by operations: it needs leases.
TEST_F(HookModuleTest, SavedUnderLeasesItIsARightFile) {
  std::stringstream file;
  {
    std::vector<Lease> leases;
    for (const at::Tensor& each : model_->parameters()) {
      auto lease = hook().MakeLease(each, Hook::Access::kRead);
      ASSERT_TRUE(lease.ok()) << lease.status();
      leases.push_back(*std::move(lease));
    }
    torch::save(model_, file);
  }
  nn::Sequential loaded(nn::Linear(20, 30), nn::Tanh(), nn::Linear(30, 10));
  torch::load(loaded, file);
  ExpectValues(loaded->parameters());
}

// LibTorch gives each parameter the storage that it has read: the ones before
// are gone, and the new ones are managed when they are handed over.
TEST_F(HookModuleTest, WhatIsLoadedIsThereAndManagedAgainWhenHandedOver) {
  nn::Sequential other(nn::Linear(20, 30), nn::Tanh(), nn::Linear(30, 10));
  std::stringstream file;
  torch::save(other, file);
  torch::load(model_, file);
  const auto loaded = model_->named_parameters();
  const std::vector<at::Tensor> expected = other->parameters();
  for (size_t i = 0; i < loaded.size(); ++i) {
    EXPECT_TRUE(loaded[i].value().equal(expected[i])) << loaded[i].key();
    Managed(loaded[i].key(), loaded[i].value());
  }
  EvictFromMemory();
  for (size_t i = 0; i < loaded.size(); ++i) {
    EXPECT_TRUE(IsCold(loaded[i].value()));
    EXPECT_TRUE(loaded[i].value().equal(expected[i])) << loaded[i].key();
  }
}

TEST_F(HookModuleTest, AScriptOverThemFindsTheValuesAndThrowsOurText) {
  torch::jit::Module script("Script");
  script.register_parameter("weight", model_->parameters()[0], false);
  script.define(R"(
    def forward(self, x):
        for i in range(3):
            x = torch.matmul(x, self.weight.t()).matmul(self.weight)
        return x
  )");
  const at::Tensor input = at::ones({2, 20});
  const at::Tensor weight = model_->parameters()[0].detach().clone();
  at::Tensor expected = input;
  for (int i = 0; i < 3; ++i) expected = expected.mm(weight.t()).mm(weight);
  for (int call = 0; call < 4; ++call) {
    EvictFromMemory();
    EXPECT_TRUE(script.forward({input}).toTensor().equal(expected)) << call;
  }
  EvictFromMemory();
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  // The interpreter's own text is about it.
  EXPECT_THAT(TextThrown([&] { script.forward({input}); }),
              HasSubstr("terrace: '0.weight' 2.34 KiB: "));
}

// Each parameter's operations throw; what is not theirs goes on.
TEST_F(HookModuleTest, AForwardThatCannotReadThrows) {
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  EXPECT_THAT(TextThrown([&] {
                model_->forward(at::ones({2, 20}));
              }),
              StartsWith("terrace: '0."));
}

}  // namespace
}  // namespace terrace
