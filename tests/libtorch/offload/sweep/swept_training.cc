#include "tests/libtorch/offload/sweep/swept_training.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <utility>

#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/thrown_by.h"
#include "tests/libtorch/torch_fixture.h"

namespace terrace {
namespace {

using ::torch::optim::AdamWOptions;

constexpr double kRate = 1e-2;

SweptModel MakeModel() {
  at::set_num_threads(1);  // tests share the machine
  at::manual_seed(11);
  return SweptModel();
}

at::Tensor LossOf(SweptModel& model, int64_t step) {
  at::manual_seed(static_cast<uint64_t>(100 + step));
  const at::Tensor input = at::randn({9, SweptModelImpl::kWidth});
  return (model->forward(input) - at::randn({9, SweptModelImpl::kWidth}))
      .square()
      .sum();
}

OptimizerOptions SweptOptimizer() {
  OptimizerOptions options;
  options.adam.learning_rate = kRate;
  options.chunk_bytes = 64 << 10;
  return options;
}

std::vector<at::Tensor> CopyOf(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copy;
  for (const at::Tensor& each : tensors) copy.push_back(each.detach().clone());
  return copy;
}

// What plain memory has: values after each step, the first one's before all.
struct Undisturbed {
  std::vector<at::Tensor> losses = {at::Tensor()};
  std::vector<std::vector<at::Tensor>> parameters;
  std::vector<ParameterState> state;  // after all
};

Undisturbed Train() {
  Undisturbed result;
  SweptModel model = MakeModel();
  SweptModel theirs = MakeModel();
  const std::unique_ptr<Runtime> runtime = MakeRuntime();
  auto optimizer =
      *OffloadedAdamW::Create(*runtime, model->parameters(), SweptOptimizer());
  ::torch::optim::AdamW reference(
      theirs->parameters(),
      AdamWOptions(kRate).weight_decay(SweptOptimizer().adam.weight_decay));
  result.parameters.push_back(CopyOf(model->parameters()));
  for (int64_t step = 1; step <= SweptTraining::kSteps; ++step) {
    optimizer->zero_grad();
    reference.zero_grad();
    const at::Tensor loss = LossOf(model, step);
    loss.backward();
    LossOf(theirs, step).backward();
    TERRACE_CHECK(optimizer->TryStep().ok());
    reference.step();
    result.losses.push_back(loss.detach().clone());
    result.parameters.push_back(CopyOf(model->parameters()));
    // The step is LibTorch's, but for how its operations are put together.
    for (size_t i = 0; i < theirs->parameters().size(); ++i) {
      EXPECT_LE(Distance(model->parameters()[i], theirs->parameters()[i]), 1e-5)
          << i;
    }
  }
  for (const at::Tensor& each : model->parameters()) {
    result.state.push_back(*optimizer->StateOf(each));
  }
  return result;
}

const Undisturbed& Expected() {
  static const auto& expected = *new Undisturbed(Train());
  return expected;
}

// A busy machine may be late with what is healthy, where I/O is in a hurry.
template <typename Make>
auto Made(const Make& make) {
  auto made = make();
  for (int tries = 0; !made.ok() && tries < 20; ++tries) {
    made = make();
  }
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

}  // namespace

SweptModelImpl::SweptModelImpl() {
  layers = register_module("layers", ::torch::nn::ModuleList());
  for (int i = 0; i < kLayers; ++i) {
    layers->push_back(::torch::nn::Linear(kWidth, kWidth));
  }
}

at::Tensor SweptModelImpl::forward(const at::Tensor& input) {
  at::Tensor hidden = input;
  for (const auto& layer : *layers) {
    hidden = hidden + layer->as<::torch::nn::Linear>()->forward(hidden).tanh();
  }
  return hidden;
}

SweptTraining::SweptTraining(const SweptOptions& options)
    : tiers_({.io_timeout = options.io_timeout}), model_(nullptr) {
  Expected();  // made before, as it needs a model of its own
  model_ = MakeModel();
  OffloadOptions asked;
  asked.memory_budget_share = 1e-6;  // raised to the minimum
  asked.nvme_paths = {"/"};          // in whose place the faulty ones are
  asked.patience = options.patience;
  offload_ = Made([&] { return Offload::Create(*model_, asked); });
  optimizer_ = Made([&] {
    return OffloadedAdamW::Create(*offload_, model_->parameters(),
                                  SweptOptimizer());
  });
  optimizer_->set_overlap(options.overlap);
}

SweptTraining::~SweptTraining() {
  tiers_.faults().Clear();
  loss_.reset();
  optimizer_.reset();
  offload_.reset();
}

void SweptTraining::ZeroGradients() {
  loss_.reset();
  optimizer_->zero_grad();
}

std::string SweptTraining::Forward(int64_t step) {
  return ThrownBy([&] { loss_ = LossOf(model_, step); });
}

std::string SweptTraining::Backward() {
  return ThrownBy([&] { loss_.backward(); });
}

void SweptTraining::ExpectLoss(int64_t step) const {
  EXPECT_TRUE(SameBits(loss_, Expected().losses[static_cast<size_t>(step)]))
      << "the loss of step " << step;
}

std::vector<std::string> SweptTraining::names() const {
  return model_->named_parameters().keys();
}

void SweptTraining::ExpectParametersAfter(int64_t step) {
  const std::vector<at::Tensor> ours = parameters();
  const auto& expected = Expected().parameters[static_cast<size_t>(step)];
  for (size_t i = 0; i < ours.size(); ++i) {
    bool is_same = false;
    const std::string thrown =
        ThrownBy([&] { is_same = SameBits(ours[i], expected[i]); });
    EXPECT_TRUE(is_same) << names()[i] << " after step " << step << thrown;
  }
}

int SweptTraining::CountRefused(int64_t first_step, int64_t last_step) {
  int refused = 0;
  const std::vector<at::Tensor> ours = parameters();
  for (size_t i = 0; i < ours.size(); ++i) {
    at::Tensor value;
    const std::string thrown =
        ThrownBy([&] { value = ours[i].detach().clone(); });
    if (!thrown.empty()) {
      ++refused;
      EXPECT_THAT(thrown, testing::StartsWith("terrace: "));
      continue;
    }
    at::Tensor known = at::zeros(value.sizes(), at::kBool);
    for (int64_t step = first_step; step <= last_step; ++step) {
      known.logical_or_(
          value.eq(Expected().parameters[static_cast<size_t>(step)][i]));
    }
    EXPECT_TRUE(known.all().item<bool>()) << names()[i];
  }
  return refused;
}

void SweptTraining::ExpectStateAfterAll() {
  const std::vector<at::Tensor> ours = parameters();
  for (size_t i = 0; i < ours.size(); ++i) {
    const auto state = optimizer_->StateOf(ours[i]);
    ASSERT_TRUE(state.ok()) << names()[i] << state.status();
    const ParameterState& expected = Expected().state[i];
    EXPECT_EQ(state->step, expected.step);
    EXPECT_TRUE(SameBits(state->exp_avg, expected.exp_avg)) << names()[i];
    EXPECT_TRUE(SameBits(state->exp_avg_sq, expected.exp_avg_sq)) << names()[i];
  }
}

}  // namespace terrace
