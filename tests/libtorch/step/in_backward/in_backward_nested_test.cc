// Functions of programs that run backward within themselves: a parameter's
// gradient is complete at the end of the outermost pass.
#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <vector>

#include "tests/libtorch/step/in_backward/in_backward_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;

at::Tensor Layer(const at::Tensor& hidden, const at::Tensor& weight) {
  return at::tanh(hidden * weight.sum() * 1e-3) + hidden;
}

// What a function is given beside its inputs.
struct Weight {
  at::Tensor tensor;
};

// As a re-entrant checkpoint: computes again, and runs backward through that,
// which alone knows of the weight.
struct Checkpoint : ::torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const Weight& weight) {
    context->save_for_backward({hidden});
    context->saved_data["weight"] = weight.tensor;
    return Layer(hidden, weight.tensor);
  }
  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    const at::Tensor hidden =
        context->get_saved_variables()[0].detach().set_requires_grad(true);
    const at::Tensor weight = context->saved_data["weight"].toTensor();
    const at::AutoGradMode with_gradients(true);
    Layer(hidden, weight).backward(gradients[0]);
    return {hidden.grad(), at::Tensor()};
  }
};

// A function that runs none.
struct Double : ::torch::autograd::Function<Double> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& hidden) {
    return hidden * 2;
  }
  static variable_list backward(AutogradContext*,
                                const variable_list& gradients) {
    return {gradients[0] * 2};
  }
};

enum class Kind : uint8_t { kNone, kFlat, kNested };

// Each weight twice, the first time by checkpoints: backward meets these last.
std::string PassOf(Kind kind, const std::vector<at::Tensor>& parameters,
                   int64_t number) {
  at::manual_seed(static_cast<uint64_t>(number));
  at::Tensor hidden = at::randn({13}).set_requires_grad(true);
  for (int round = 0; round < 2; ++round) {
    for (const at::Tensor& each : parameters) {
      hidden = round == 0 && kind == Kind::kNested
                   ? Checkpoint::apply(hidden, Weight{each})
                   : Layer(hidden, each);
    }
    if (kind == Kind::kFlat) hidden = Double::apply(hidden);
  }
  try {
    hidden.sum().backward();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void Step(Trained& trained, Kind kind, int passes, int64_t step) {
  trained.optimizer().zero_grad();
  for (int pass = 0; pass < passes; ++pass) {
    ASSERT_EQ(PassOf(kind, trained.parameters(), 10 * step + pass), "");
  }
  const absl::Status status = trained.optimizer().TryStep();
  ASSERT_TRUE(status.ok()) << status;
}

class InBackwardNestedTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Passes, InBackwardNestedTest, testing::Values(1, 2));

TEST_P(InBackwardNestedTest, HasTheBitsOfStepsAfterBackward) {
  for (const Kind kind : {Kind::kNested, Kind::kFlat}) {
    const auto ours = TrainedInBackward(GetParam());
    const auto theirs = TrainedInBackward(0);
    for (int64_t step = 1; step <= 3; ++step) {
      Step(*ours, kind, GetParam(), step);
      Step(*theirs, kind, GetParam(), step);
      ExpectSame(*ours, *theirs);
    }
  }
}

// Only those within: the outermost pass accumulates nothing itself.
TEST_P(InBackwardNestedTest, ItMayBeOnlyThoseWithinThatAccumulate) {
  const auto ours = TrainedInBackward(GetParam());
  const auto theirs = TrainedInBackward(0);
  for (int64_t step = 1; step <= 3; ++step) {
    for (Trained* const each : {ours.get(), theirs.get()}) {
      each->optimizer().zero_grad();
      for (int pass = 0; pass < GetParam(); ++pass) {
        at::manual_seed(static_cast<uint64_t>(10 * step + pass));
        at::Tensor hidden = at::randn({13}).set_requires_grad(true);
        for (const at::Tensor& weight : each->parameters()) {
          hidden = Checkpoint::apply(hidden, Weight{weight});
        }
        hidden.sum().backward();
      }
      const absl::Status status = each->optimizer().TryStep();
      ASSERT_TRUE(status.ok()) << status;
    }
    ExpectSame(*ours, *theirs);
  }
}

// What was learnt of one graph may be wrong of the next: nothing is stepped
// with half a gradient without a word.
TEST(InBackwardNested, OneThatWasNotMetBeforeIsRight) {
  const auto ours = TrainedInBackward(1);
  const auto theirs = TrainedInBackward(0);
  int64_t step = 0;
  for (const Kind kind : {Kind::kNone, Kind::kNested, Kind::kNone}) {
    ++step;
    Step(*ours, kind, 1, step);
    Step(*theirs, kind, 1, step);
    ExpectSame(*ours, *theirs);
  }
}

TEST(InBackwardNested, OrIsRefusedWhereAFunctionWasFlatBefore) {
  const auto ours = TrainedInBackward(1);
  Step(*ours, Kind::kFlat, 1, 1);
  const std::string thrown = PassOf(Kind::kNested, ours->parameters(), 20);
  EXPECT_THAT(thrown, HasSubstr("runs backward within itself"));
  EXPECT_THAT(std::string(ours->optimizer().TryStep().message()),
              HasSubstr("resume from the last checkpoint"));
}

}  // namespace
}  // namespace terrace
