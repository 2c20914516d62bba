// Optimizers of shares of one model, each told the gradients of all of it, do
// what the optimizer of all does.
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/optimizer/training.h"

namespace terrace {
namespace {

std::vector<GradientData> AllGradients(Model& model) {
  const std::vector<ParameterSpec> specs = model.specs();
  const std::vector<ParameterData> data = model.data();
  std::vector<GradientData> gradients;
  for (size_t i = 0; i < specs.size(); ++i) {
    gradients.push_back(
        {data[i].gradient, data[i].gradient_dtype, specs[i].count, nullptr});
  }
  return gradients;
}

// Every other parameter, from `first` on.
class Share {
 public:
  Share(Model& model, const OptimizerOptions& options, size_t first)
      : executor_(*MakePoolExecutor(2, {})),
        runtime_({.budget_bytes = 1 << 20}, SystemClock(), *executor_) {
    std::vector<ParameterSpec> specs;
    for (size_t i = first; i < model.specs().size(); i += 2) {
      own_.push_back(i);
      specs.push_back(model.specs()[i]);
    }
    auto created = OffloadedOptimizer::Create(runtime_, specs, options);
    EXPECT_TRUE(created.ok()) << created.status();
    optimizer_ = *std::move(created);
  }

  absl::Status Step(const StepArguments& arguments, Model& model) {
    std::vector<ParameterData> data;
    for (size_t i : own_) data.push_back(model.data()[i]);
    return optimizer_->Step(arguments, data, Soon());
  }
  const StepReport& report() const { return optimizer_->last_report(); }

 private:
  std::vector<size_t> own_;
  std::unique_ptr<Executor> executor_;
  MapRuntime runtime_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

TEST(Share, ClipsByTheNormOfAll) {
  OptimizerOptions options = SmallChunks();
  options.max_gradient_norm = 0.5;
  Model model = Model::Mixed(11);
  ReferenceOptimizer reference(model, options);
  Share even(model, options, 0);
  Share odd(model, options, 1);
  for (int step = 1; step <= 4; ++step) {
    model.DrawGradients(step, 1);
    reference.Step({}, model);
    const std::vector<GradientData> all = AllGradients(model);
    StepArguments arguments;
    arguments.norm_gradients = all;
    ASSERT_TRUE(even.Step(arguments, model).ok());
    ASSERT_TRUE(odd.Step(arguments, model).ok());
    EXPECT_EQ(reference.Difference(model), "") << "step " << step;
    EXPECT_GT(even.report().gradient_norm, 0.5);
    EXPECT_EQ(even.report().gradient_norm, odd.report().gradient_norm);
  }
}

TEST(Share, SkipsWhatAnotherShareMustSkip) {
  OptimizerOptions options = SmallChunks();
  options.skip_nonfinite = true;
  Model model = Model::Mixed(12);
  Share even(model, options, 0);
  Share odd(model, options, 1);
  model.DrawGradients(1, 1);
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<GradientData> all = AllGradients(model);
  all.push_back({&infinity, DType::kFloat32, 1, nullptr});
  StepArguments arguments;
  arguments.norm_gradients = all;
  ASSERT_TRUE(even.Step(arguments, model).ok());
  ASSERT_TRUE(odd.Step(arguments, model).ok());
  EXPECT_TRUE(even.report().skipped);
  EXPECT_TRUE(odd.report().skipped);
  // Of none of a model's gradients nothing is skipped.
  arguments.norm_gradients = absl::Span<const GradientData>();
  ASSERT_TRUE(even.Step(arguments, model).ok());
  EXPECT_FALSE(even.report().skipped);
}

TEST(Share, AGradientOfTheNormThatCannotBeReadIsNamed) {
  Model model = Model::Mixed(13);
  Share even(model, SmallChunks(), 0);
  model.DrawGradients(1, 1);
  const std::vector<GradientData> all = AllGradients(model);
  const auto refused = [&](size_t index, const GradientData& bad) {
    std::vector<GradientData> gradients = all;
    gradients[index] = bad;
    StepArguments arguments;
    arguments.norm_gradients = gradients;
    const absl::Status status = even.Step(arguments, model);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find(absl::StrCat("[", index, "]")),
              absl::string_view::npos)
        << status;
  };
  const float value = 1;
  const auto* const odd = reinterpret_cast<const std::byte*>(&value) + 1;
  refused(0, {&value, DType::kFloat32, -1, nullptr});
  refused(1, {&value, static_cast<DType>(7), 1, nullptr});
  refused(2, {odd, DType::kFloat32, 1, nullptr});
  StepArguments arguments;
  arguments.norm_gradients = all;
  EXPECT_TRUE(even.Step(arguments, model).ok());
}

}  // namespace
}  // namespace terrace
