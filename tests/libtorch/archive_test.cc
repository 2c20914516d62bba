// State through torch::serialize, ours and torch::optim::AdamW's.
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/serialize/archive.h>

#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/libtorch/torch_fixture.h"

namespace terrace {
namespace {

using ::torch::optim::AdamWOptions;
using ::torch::optim::OptimizerParamGroup;

std::string Saved(const ::torch::optim::Optimizer& optimizer) {
  ::torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream bytes;
  archive.save_to(bytes);
  return bytes.str();
}

void Load(const std::string& bytes, ::torch::optim::Optimizer& optimizer) {
  std::istringstream stream(bytes);
  ::torch::serialize::InputArchive archive;
  archive.load_from(stream);
  optimizer.load(archive);
}

std::vector<OptimizerParamGroup> TwoGroups(
    const std::vector<at::Tensor>& parameters, double rate) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(
      std::vector<at::Tensor>(parameters.begin(), parameters.begin() + 3),
      std::make_unique<AdamWOptions>(rate));
  groups.emplace_back(
      std::vector<at::Tensor>(parameters.begin() + 3, parameters.end()),
      std::make_unique<AdamWOptions>(
          AdamWOptions(2 * rate).betas({0.8, 0.99}).weight_decay(0.3)));
  return groups;
}

std::unique_ptr<OffloadedAdamW> Make(Runtime& runtime,
                                     std::vector<OptimizerParamGroup> groups,
                                     int64_t chunk_bytes) {
  OptimizerOptions options;
  options.chunk_bytes = chunk_bytes;
  auto made = OffloadedAdamW::Create(runtime, std::move(groups), options);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

TEST(TorchArchive, AResumedRunHasTheBitsOfTheUninterrupted) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(toString(dtype));
    const auto runtime = MakeRuntime();
    const std::vector<at::Tensor> parameters = MakeParameters(dtype);
    auto optimizer = Make(*runtime, TwoGroups(parameters, 1e-3), 64 << 10);
    const auto steps = [](const std::vector<at::Tensor>& tensors,
                          OffloadedAdamW& stepped, int from, int to) {
      for (int step = from; step <= to; ++step) {
        DrawGradients(step, tensors);
        if (step <= 3) tensors[5].mutable_grad().reset();  // none yet
        stepped.step();
      }
    };
    steps(parameters, *optimizer, 1, 3);
    optimizer->param_groups()[1].options().set_lr(5e-3);
    const std::string bytes = Saved(*optimizer);
    const std::vector<at::Tensor> resumed = CopiesOf(parameters, dtype);
    steps(parameters, *optimizer, 4, 7);

    const auto other_runtime = MakeRuntime(2 << 20);
    auto other = Make(*other_runtime, TwoGroups(resumed, 0.5), 200 << 10);
    Load(bytes, *other);
    EXPECT_EQ(other->offloaded().step(), 3);
    EXPECT_EQ(other->param_groups()[1].options().get_lr(), 5e-3);
    steps(resumed, *other, 4, 7);
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(SameBits(parameters[i], resumed[i])) << i;
      const auto a = optimizer->StateOf(parameters[i]);
      const auto b = other->StateOf(resumed[i]);
      ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
      EXPECT_EQ(a->step, b->step);
      EXPECT_EQ(a->step, i == 5 ? 4 : 7);
      EXPECT_TRUE(SameBits(a->exp_avg, b->exp_avg));
      EXPECT_TRUE(SameBits(a->exp_avg_sq, b->exp_avg_sq));
      EXPECT_EQ(a->exp_avg.sizes(), parameters[i].sizes());
    }
  }
}

TEST(TorchArchive, GoesFromAndToLibTorchsAdamW) {
  const auto runtime = MakeRuntime();
  const std::vector<at::Tensor> theirs_parameters = MakeParameters();
  ::torch::optim::AdamW theirs(TwoGroups(theirs_parameters, 1e-3));
  for (int step = 1; step <= 4; ++step) {
    DrawGradients(step, theirs_parameters);
    theirs.step();
  }
  // Come: a run of theirs goes on in ours.
  const std::vector<at::Tensor> parameters =
      CopiesOf(theirs_parameters, at::kFloat);
  auto ours = Make(*runtime, TwoGroups(parameters, 1e-3), 64 << 10);
  Load(Saved(theirs), *ours);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto state = ours->StateOf(parameters[i]);
    ASSERT_TRUE(state.ok()) << state.status();
    const auto& expected = static_cast<::torch::optim::AdamWParamState&>(
        *theirs.state().at(theirs_parameters[i].unsafeGetTensorImpl()));
    EXPECT_EQ(state->step, 4);
    EXPECT_TRUE(SameBits(state->exp_avg, expected.exp_avg()));
    EXPECT_TRUE(SameBits(state->exp_avg_sq, expected.exp_avg_sq()));
  }
  // Go: a third one, theirs, takes up what ours saved.
  for (int step = 5; step <= 8; ++step) {
    DrawGradients(step, parameters);
    DrawGradients(step, theirs_parameters);
    ours->step();
    theirs.step();
  }
  const std::vector<at::Tensor> back = CopiesOf(parameters, at::kFloat);
  ::torch::optim::AdamW third(TwoGroups(back, 1e-3));
  Load(Saved(*ours), third);
  for (int step = 9; step <= 12; ++step) {
    DrawGradients(step, back);
    DrawGradients(step, theirs_parameters);
    third.step();
    theirs.step();
  }
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_LE(Distance(back[i], theirs_parameters[i]), 2e-6) << i;
  }
}

TEST(TorchArchive, AdamHasItsOwnFormat) {
  const auto runtime = MakeRuntime();
  const std::vector<at::Tensor> parameters = MakeParameters();
  auto ours = OffloadedAdam::Create(*runtime, parameters, SmallChunks());
  ASSERT_TRUE(ours.ok()) << ours.status();
  DrawGradients(1, parameters);
  (*ours)->step();
  const std::vector<at::Tensor> copies = CopiesOf(parameters, at::kFloat);
  ::torch::optim::Adam theirs(copies);
  Load(Saved(**ours), theirs);
  DrawGradients(2, parameters);
  DrawGradients(2, copies);
  (*ours)->step();
  theirs.step();
  for (size_t i = 0; i < copies.size(); ++i) {
    EXPECT_LE(Distance(copies[i], parameters[i]), 1e-6) << i;
  }
}

TEST(TorchArchive, AMasterThatIsNotThereIsMadeFromTheParameter) {
  const std::vector<at::Tensor> theirs_parameters =
      MakeParameters(at::kBFloat16);
  ::torch::optim::AdamW theirs(theirs_parameters, AdamWOptions(1e-3));
  DrawGradients(1, theirs_parameters);
  theirs.step();
  const auto runtime = MakeRuntime();
  const std::vector<at::Tensor> parameters =
      CopiesOf(theirs_parameters, at::kBFloat16);
  auto ours = OffloadedAdamW::Create(*runtime, parameters, SmallChunks());
  ASSERT_TRUE(ours.ok()) << ours.status();
  Load(Saved(theirs), **ours);
  // A step at no rate: the master is the parameter, whole.
  (*ours)->param_groups()[0].options().set_lr(0);
  DrawGradients(2, parameters);
  (*ours)->step();
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(SameBits(parameters[i], theirs_parameters[i])) << i;
    const auto state = (*ours)->StateOf(parameters[i]);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->step, 2);
    EXPECT_TRUE(SameBits(state->master, theirs_parameters[i].to(at::kFloat)));
  }
}

TEST(TorchArchive, StateWithoutAMasterIsReadAndSaved) {
  const std::vector<at::Tensor> theirs_parameters =
      MakeParameters(at::kBFloat16);
  ::torch::optim::AdamW theirs(theirs_parameters, AdamWOptions(1e-3));
  DrawGradients(1, theirs_parameters);
  theirs.step();
  std::vector<std::unique_ptr<Runtime>> runtimes;
  std::vector<std::vector<at::Tensor>> parameters;
  std::vector<std::unique_ptr<OffloadedAdamW>> ours;
  std::string bytes = Saved(theirs);
  for (int i = 0; i < 2; ++i) {  // the second of what the first saved
    parameters.push_back(CopiesOf(theirs_parameters, at::kBFloat16));
    runtimes.push_back(MakeRuntime());
    auto made = OffloadedAdamW::Create(*runtimes.back(), parameters.back(),
                                       SmallChunks());
    ASSERT_TRUE(made.ok()) << made.status();
    ours.push_back(*std::move(made));
    Load(bytes, *ours.back());
    const auto state = ours.back()->StateOf(parameters.back()[0]);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->step, 1);
    EXPECT_FALSE(state->master.defined());
    bytes = Saved(*ours.back());
  }
  for (int i = 0; i < 2; ++i) {
    DrawGradients(2, parameters[i]);
    ours[i]->step();
  }
  for (size_t i = 0; i < theirs_parameters.size(); ++i) {
    EXPECT_TRUE(SameBits(parameters[0][i], parameters[1][i])) << i;
  }
}

TEST(TorchArchive, ALoadWritesEachChunkOnceAndReadsNone) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(toString(dtype));
    std::vector<at::Tensor> parameters = MakeParameters(dtype);
    parameters.push_back(
        at::randn({300'007}).to(dtype).clone().set_requires_grad(true));
    std::string bytes;
    {
      const auto runtime = MakeRuntime();
      auto ours = Make(*runtime, TwoGroups(parameters, 1e-3), 64 << 10);
      DrawGradients(1, parameters);
      ours->step();
      bytes = Saved(*ours);
    }
    const auto runtime = MakeRuntime();
    auto ours = Make(*runtime, TwoGroups(parameters, 1e-3), 64 << 10);
    const OptimizerPlan plan = ours->offloaded().plan();
    Load(bytes, *ours);
    ours.reset();
    ASSERT_TRUE(runtime->Close(absl::Now() + absl::Seconds(60)).ok());
    const Stats stats = runtime->GetStats();
    EXPECT_EQ(stats.bytes_read(), 0);
    EXPECT_LE(stats.bytes_written(), plan.disk_bytes);
    EXPECT_GT(stats.bytes_written(), plan.state_bytes / 2);
  }
}

TEST(TorchArchive, WhatDoesNotFitIsRefusedAndChangesNothing) {
  const auto runtime = MakeRuntime();
  const std::vector<at::Tensor> parameters = MakeParameters();
  auto ours = Make(*runtime, TwoGroups(parameters, 1e-3), 64 << 10);
  DrawGradients(1, parameters);
  ours->step();
  const auto before = ours->StateOf(parameters[4]);
  ASSERT_TRUE(before.ok()) << before.status();
  const auto refused = [&](const ::torch::optim::Optimizer& optimizer) {
    const std::string bytes = Saved(optimizer);
    EXPECT_THROW(Load(bytes, *ours), c10::Error);
    const auto after = ours->StateOf(parameters[4]);
    EXPECT_TRUE(after.ok() && after->step == 1 &&
                SameBits(after->exp_avg, before->exp_avg));
  };
  // One group, of two; another number of parameters; other shapes.
  refused(::torch::optim::AdamW(MakeParameters()));
  std::vector<at::Tensor> fewer = MakeParameters();
  fewer.pop_back();
  refused(::torch::optim::AdamW(TwoGroups(fewer, 1e-3)));
  std::vector<at::Tensor> others = MakeParameters();
  others[4] = at::ones({7}).set_requires_grad(true);
  ::torch::optim::AdamW stepped(TwoGroups(others, 1e-3));
  DrawGradients(1, others);
  stepped.step();
  refused(stepped);
}

}  // namespace
}  // namespace terrace
