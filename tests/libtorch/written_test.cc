// 16-bit parameters that a program writes between steps: the run goes on from
// what it wrote, as torch::optim::AdamW does in double precision.
#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/libtorch/torch_fixture.h"

namespace terrace {
namespace {

// As OffloadedAdamW's, and exact ones whose moments and steps are the same.
class WrittenRun {
 public:
  explicit WrittenRun(std::vector<at::Tensor> parameters)
      : parameters_(std::move(parameters)),
        exact_(CopiesOf(parameters_, at::kDouble)),
        runtime_(MakeRuntime()),
        ours_(*OffloadedAdamW::Create(*runtime_, parameters_, SmallChunks())),
        theirs_(exact_, ::torch::optim::AdamWOptions(1e-3)) {}

  void Steps(int count) {
    for (int i = 0; i < count; ++i) {
      DrawGradients(++step_, parameters_);
      for (size_t j = 0; j < parameters_.size(); ++j) {
        exact_[j].mutable_grad() = parameters_[j].grad().to(at::kDouble);
      }
      ours_->step();
      theirs_.step();
    }
  }
  // Where `write` changes a parameter, that is what both go on from.
  void Write(const std::function<void(at::Tensor&)>& write) {
    const at::NoGradGuard no_gradients;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor before = parameters_[i].detach().clone();
      at::Tensor written = parameters_[i].detach();
      write(written);
      exact_[i].copy_(
          at::where(before == written, exact_[i], written.to(at::kDouble)));
    }
  }
  void ExpectSame() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const auto state = ours_->StateOf(parameters_[i]);
      ASSERT_TRUE(state.ok()) << state.status();
      EXPECT_LE(Distance(state->master, exact_[i]), 1e-5) << i;
      EXPECT_TRUE(SameBits(parameters_[i],
                           state->master.to(parameters_[i].scalar_type())))
          << i;
    }
  }

 private:
  const std::vector<at::Tensor> parameters_;
  const std::vector<at::Tensor> exact_;
  const std::unique_ptr<Runtime> runtime_;
  const std::unique_ptr<OffloadedAdamW> ours_;
  ::torch::optim::AdamW theirs_;
  int step_ = 0;
};

TEST(TorchWritten, ParametersGoOnFromWhatAProgramWrote) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(toString(dtype));
    std::vector<at::Tensor> parameters = MakeParameters(dtype);
    // One whose elements do not lie in order.
    parameters.push_back(at::randn({71, 83}).to(dtype).t().detach());
    parameters.back().set_requires_grad(true);
    WrittenRun run(parameters);
    run.Steps(2);
    run.Write([](at::Tensor& p) { p.clamp_(-0.5, 0.5); });
    run.Steps(3);
    run.ExpectSame();
    run.Write([](at::Tensor& p) { p.mul_(0.5).add_(0.01); });
    run.Steps(1);
    run.Write([](at::Tensor& p) {
      if (p.dim() > 1 && p.numel() > 0) p[1][2] = 3.0;
    });
    run.Steps(2);
    run.ExpectSame();
    run.Write([](at::Tensor& p) { p.fill_(0.25); });
    run.Steps(2);
    run.ExpectSame();
  }
}

TEST(TorchWritten, WritingTheSameBitsChangesNone) {
  const std::vector<at::Tensor> parameters = MakeParameters(at::kBFloat16);
  const std::vector<at::Tensor> others = CopiesOf(parameters, at::kBFloat16);
  const auto runtime = MakeRuntime(), other_runtime = MakeRuntime();
  auto ours = *OffloadedAdamW::Create(*runtime, parameters, SmallChunks());
  auto theirs = *OffloadedAdamW::Create(*other_runtime, others, SmallChunks());
  for (int step = 1; step <= 5; ++step) {
    DrawGradients(step, parameters);
    DrawGradients(step, others);
    ours->step();
    theirs->step();
    const at::NoGradGuard no_gradients;
    for (const at::Tensor& parameter : parameters) {
      parameter.copy_(parameter.clone());
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(SameBits(parameters[i], others[i])) << i;
    EXPECT_TRUE(SameBits(ours->StateOf(parameters[i])->master,
                         theirs->StateOf(others[i])->master))
        << i;
  }
}

}  // namespace
}  // namespace terrace
