// Programs of many kinds have the same bits with their tensors below as
// without: each is run on plain tensors and on managed ones that are evicted
// at every boundary that it names.
#include <ATen/autocast_mode.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kWidth = 24;
constexpr int kSteps = 4;

// What a program has of the hook; without one nothing is done.
struct Boundaries {
  std::function<void(const at::Tensor&)> manage = [](const at::Tensor&) {};
  std::function<void()> evict = [] {};
};

struct Program {
  const char* name;
  // The parameters are leaves; what it leaves behind is compared.
  std::function<Tensors(const Tensors& parameters, const Boundaries&)> run;
};

Tensors Parameters() {
  at::manual_seed(3);
  Tensors parameters;
  for (int layer = 0; layer < 3; ++layer) {
    parameters.push_back(at::randn({kWidth, kWidth}) / 5);
    parameters.push_back(at::randn({kWidth}));
  }
  return parameters;
}

at::Tensor Input(int step) {
  return at::sin(at::arange(5 * kWidth, at::kFloat).view({5, kWidth}) + step);
}

at::Tensor Forward(const Tensors& parameters, at::Tensor out) {
  for (size_t i = 0; i < parameters.size(); i += 2) {
    out = at::tanh(at::linear(out, parameters[i], parameters[i + 1]));
  }
  return out;
}

Tensors Gradients(const Tensors& parameters) {
  Tensors gradients;
  for (const at::Tensor& each : parameters) gradients.push_back(each.grad());
  return gradients;
}

void DropGradients(const Tensors& parameters) {
  for (const at::Tensor& each : parameters) each.mutable_grad().reset();
}

void StepPlainly(const Tensors& parameters) {
  const c10::NoGradGuard guard;
  for (const at::Tensor& each : parameters) each.sub_(each.grad(), 0.1);
}

// As torch.optim.AdamW's foreach form has it, or its fused one.
Tensors TrainAdamW(const Tensors& parameters, const Boundaries& boundaries,
                   bool is_fused) {
  Tensors averages;
  Tensors squares;
  Tensors steps;
  for (const at::Tensor& each : parameters) {
    averages.push_back(at::zeros_like(each.detach()));
    squares.push_back(at::zeros_like(each.detach()));
    steps.push_back(at::zeros({}));
    boundaries.manage(averages.back());
    boundaries.manage(squares.back());
  }
  Tensors left;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor loss = Forward(parameters, Input(step)).square().mean();
    boundaries.evict();
    loss.backward();
    left.push_back(loss.detach());
    boundaries.evict();
    const c10::NoGradGuard guard;
    const Tensors gradients = Gradients(parameters);
    if (is_fused) {
      at::_foreach_add_(steps, 1);
      at::_fused_adamw_(parameters, gradients, averages, squares, {}, steps,
                        1e-2, 0.9, 0.99, 0.01, 1e-8, /*amsgrad=*/false,
                        /*maximize=*/false);
    } else {
      at::_foreach_mul_(parameters, 1 - 1e-4);
      at::_foreach_lerp_(averages, gradients, 0.1);
      at::_foreach_mul_(squares, 0.99);
      at::_foreach_addcmul_(squares, gradients, gradients, 0.01);
      Tensors roots = at::_foreach_sqrt(squares);
      boundaries.evict();
      at::_foreach_add_(roots, 1e-8);
      at::_foreach_addcdiv_(parameters, averages, roots, -1e-2);
    }
    DropGradients(parameters);
    boundaries.evict();
  }
  left.insert(left.end(), averages.begin(), averages.end());
  left.insert(left.end(), squares.begin(), squares.end());
  return left;
}

// bf16, and a scale that an overflow halves, as GradScaler's.
Tensors TrainWithAutocast(const Tensors& parameters,
                          const Boundaries& boundaries) {
  at::Tensor scale = at::full({1}, 65536.0F);
  at::Tensor growth = at::zeros({1}, at::kInt);
  Tensors left;
  for (int step = 0; step < kSteps; ++step) {
    at::Tensor loss;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    loss = Forward(parameters, Input(step)).to(at::kFloat).square().mean();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    boundaries.evict();
    // The second step overflows.
    (loss * scale * (step == 1 ? 1e38 : 1)).sum().backward();
    boundaries.evict();
    const c10::NoGradGuard guard;
    Tensors gradients = Gradients(parameters);
    at::Tensor found = at::zeros({1});
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found,
                                                   scale.reciprocal());
    if (found.item<float>() == 0) StepPlainly(parameters);
    at::_amp_update_scale_(scale, growth, found, 2, 0.5, 3);
    left.push_back(loss.detach());
    left.push_back(scale.clone());
    DropGradients(parameters);
    boundaries.evict();
  }
  return left;
}

Tensors TrainScript(const Tensors& parameters, const Boundaries& boundaries) {
  torch::jit::Module module("Layers");
  for (size_t i = 0; i < parameters.size(); ++i) {
    module.register_parameter("p" + std::to_string(i), parameters[i],
                              /*is_buffer=*/false);
  }
  module.define(R"(
    def forward(self, x):
        x = torch.tanh(torch.addmm(self.p1, x, self.p0.t()))
        x = torch.tanh(torch.addmm(self.p3, x, self.p2.t()))
        if bool(x.sum() > 1000):
            x = x * 2
        return torch.tanh(torch.addmm(self.p5, x, self.p4.t()))
  )");
  Tensors left;
  for (int step = 0; step < kSteps; ++step) {  // it is optimised from the third
    const at::Tensor loss =
        module.forward({Input(step)}).toTensor().square().mean();
    boundaries.evict();
    loss.backward();
    boundaries.evict();
    left.push_back(loss.detach());
    StepPlainly(parameters);
    DropGradients(parameters);
    boundaries.evict();
  }
  return left;
}

// Saves its inputs, one of which is managed, and what it made.
struct ScaledRows : torch::autograd::Function<ScaledRows> {
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& rows, const at::Tensor& by) {
    const at::Tensor made = rows * by.exp();
    context->save_for_backward({rows, by, made});
    return made;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1].exp(), (gradients[0] * saved[2]).sum(0)};
  }
};

Tensors TrainCustomFunction(const Tensors& parameters,
                            const Boundaries& boundaries) {
  Tensors left;
  for (int step = 0; step < kSteps; ++step) {
    at::Tensor out = at::mm(Input(step), parameters[0]);
    out = ScaledRows::apply(out, parameters[1]);
    boundaries.evict();
    out = at::linear(ScaledRows::apply(out, parameters[3]), parameters[2]);
    out = at::linear(out, parameters[4], parameters[5]);
    const at::Tensor loss = out.square().mean();
    boundaries.evict();
    loss.backward();
    boundaries.evict();
    left.push_back(loss.detach());
    StepPlainly(parameters);
    DropGradients(parameters);
    boundaries.evict();
  }
  return left;
}

// What a segment runs over, and does between its parts.
struct SegmentParts {
  const Tensors& parameters;
  const std::function<void()>& between;
};

// Its forward is run again inside backward, with a backward of its own: all
// parameters' gradients accumulate there.
struct Segment : torch::autograd::Function<Segment> {
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& input,
                            const SegmentParts* parts) {
    context->save_for_backward({input});
    context->saved_data["parts"] = reinterpret_cast<int64_t>(parts);
    const c10::NoGradGuard guard;
    return Forward(parts->parameters, input);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const auto& parts = *reinterpret_cast<const SegmentParts*>(
        context->saved_data["parts"].toInt());
    const c10::AutoGradMode guard(true);
    at::Tensor input =
        context->get_saved_variables()[0].detach().requires_grad_();
    parts.between();
    const at::Tensor out = Forward(parts.parameters, input);
    parts.between();
    torch::autograd::backward({out}, {gradients[0]});
    parts.between();
    return {input.grad(), at::Tensor()};
  }
};

// Two of them over the same parameters.
Tensors TrainSegments(const Tensors& parameters, const Boundaries& boundaries) {
  const SegmentParts parts = {parameters, boundaries.evict};
  Tensors left;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor input = Input(step).requires_grad_();
    const at::Tensor loss =
        Segment::apply(Segment::apply(input, &parts), &parts).square().mean();
    boundaries.evict();
    loss.backward();
    left.push_back(loss.detach());
    left.push_back(input.grad());
    StepPlainly(parameters);
    DropGradients(parameters);
    boundaries.evict();
  }
  return left;
}

// What forward saves for backward, and the gradients.
Tensors TrainWithAllManaged(const Tensors& parameters,
                            const Boundaries& boundaries) {
  Tensors left;
  for (int step = 0; step < kSteps; ++step) {
    at::Tensor out = Input(step);
    for (size_t i = 0; i < parameters.size(); i += 2) {
      boundaries.manage(out);
      out = at::tanh(at::linear(out, parameters[i], parameters[i + 1]));
      boundaries.manage(out);
      boundaries.evict();
    }
    const at::Tensor loss = out.square().mean();
    out.reset();
    boundaries.evict();
    loss.backward();
    left.push_back(loss.detach());
    for (const at::Tensor& each : parameters) boundaries.manage(each.grad());
    boundaries.evict();
    Forward(parameters, Input(step + 100)).mean().backward();  // accumulated
    boundaries.evict();
    StepPlainly(parameters);
    for (const at::Tensor& each : parameters) left.push_back(each.grad());
    DropGradients(parameters);
  }
  return left;
}

const Program kPrograms[] = {
    {"ForeachAdamW",
     [](const Tensors& parameters, const Boundaries& boundaries) {
       return TrainAdamW(parameters, boundaries, /*is_fused=*/false);
     }},
    {"FusedAdamW",
     [](const Tensors& parameters, const Boundaries& boundaries) {
       return TrainAdamW(parameters, boundaries, /*is_fused=*/true);
     }},
    {"AutocastAndScale", TrainWithAutocast},
    {"TorchScript", TrainScript},
    {"CustomFunction", TrainCustomFunction},
    {"ReentrantSegments", TrainSegments},
    {"ActivationsAndGradients", TrainWithAllManaged}};

class HookIdentityTest : public HookTest,
                         public testing::WithParamInterface<Program> {
 protected:
  static Tensors Run(const Boundaries& boundaries) {
    Tensors parameters;
    for (at::Tensor& each : Parameters()) {
      boundaries.manage(each);
      parameters.push_back(each.set_requires_grad(true));
    }
    Tensors left = GetParam().run(parameters, boundaries);
    for (const at::Tensor& each : parameters) left.push_back(each.detach());
    for (at::Tensor& each : left) each = each.clone();
    return left;
  }
};
INSTANTIATE_TEST_SUITE_P(Programs, HookIdentityTest,
                         testing::ValuesIn(kPrograms),
                         [](const testing::TestParamInfo<Program>& program) {
                           return std::string(program.param.name);
                         });

TEST_P(HookIdentityTest, BitsAreThoseWithoutTheHook) {
  at::set_num_threads(1);
  const Tensors plain = Run({});
  // Evicted at each boundary; then in the order of use alone, with room for a
  // few.
  for (const bool evicts : {true, false}) {
    SCOPED_TRACE(evicts ? "evicted" : "by use");
    Make(evicts ? 256 << 10 : 24 << 10, 128 << 10, {.verify_clean = true});
    int managed = 0;
    Boundaries boundaries;
    boundaries.manage = [&](const at::Tensor& tensor) {
      Managed("t" + std::to_string(managed++), tensor);
    };
    if (evicts) boundaries.evict = [&] { hook().EvictAll(); };
    const Tensors found = Run(boundaries);
    ASSERT_EQ(found.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(found[i].equal(plain[i])) << i;
    }
    EXPECT_EQ(hook().stats().failures, 0) << hook().error();
    EXPECT_EQ(hook().stats().unmarked_writes, 0);
    EXPECT_GT(hook().stats().fetches, 20);
  }
}

}  // namespace
}  // namespace terrace
