// While updates go on, operations see parameters updated, and what fails is
// told by the operation, tried again to the same bits, or given up.
#include "libtorch/step/late/late_updates.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <atomic>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "libtorch/step/late/update_net.h"
#include "tests/libtorch/hook/hook_fixture.h"
#include "tests/libtorch/torch_fixture.h"
#include "tests/support/map_runtime.h"

// Of the last tensor of the last list, by its address.
TORCH_LIBRARY_FRAGMENT(terrace_test, m) {
  m.def("last_value(Tensor[][] lists) -> Tensor",
        [](const std::vector<std::vector<at::Tensor>>& lists) {
          return at::full({}, *lists.back().back().const_data_ptr<float>());
        });
}

namespace terrace {
namespace {

using testing::HasSubstr;
using CallKind = MapRuntime::CallKind;

constexpr int64_t kElements = 8000;  // nearly a chunk

// Six parameters, each of which is about a chunk; the third is out of order.
class Model {
 public:
  explicit Model(OptimizerOptions options = {})
      : executor_(*MakePoolExecutor(2, {})) {
    at::set_num_threads(1);  // tests share the machine
    runtime_ = std::make_unique<MapRuntime>(
        MapRuntime::Behaviour{.budget_bytes = 256 << 10, .most_pushed = 1},
        SystemClock(), *executor_);
    at::manual_seed(5);
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < 6; ++i) {
      at::Tensor made =
          i == 2 ? at::randn({100, 80}).t() : at::randn({kElements});
      parameters_.push_back(made.set_requires_grad(true));
      specs.push_back({.name = absl::StrCat("p", i), .count = kElements});
    }
    options.chunk_bytes = SmallChunks().chunk_bytes;
    optimizer_ =
        *OffloadedOptimizer::Create(*runtime_, std::move(specs), options);
  }

  void Draw(int step) { DrawGradients(step, parameters_); }
  LateArguments Arguments() {
    LateArguments arguments;
    arguments.groups = {AdamOptions()};
    for (int i = 0; i < 6; ++i) {
      const at::Tensor& parameter = parameters_[static_cast<size_t>(i)];
      LateParameter each = {.place = i,
                            .name = absl::StrCat("p", i),
                            .parameter = parameter,
                            .gradient = parameter.grad().contiguous()};
      if (!parameter.is_contiguous()) {
        each.in_order = parameter.detach().contiguous();
      }
      const at::Tensor& target =
          each.in_order.defined() ? each.in_order : parameter;
      arguments.data.push_back({.parameter = target.data_ptr(),
                                .gradient = each.gradient.const_data_ptr()});
      arguments.parameters.push_back(std::move(each));
    }
    return arguments;
  }
  std::unique_ptr<LateUpdates> Begin() {
    auto begun = LateUpdates::Begin(*optimizer_, Arguments());
    EXPECT_TRUE(begun.ok()) << begun.status();
    return *std::move(begun);
  }
  at::Tensor& parameter(size_t i) { return parameters_[i]; }
  MapRuntime& runtime() { return *runtime_; }
  OffloadedOptimizer& optimizer() { return *optimizer_; }

 private:
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<MapRuntime> runtime_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

// What steps that block leave.
std::vector<at::Tensor> After(int steps) {
  Model model;
  std::vector<at::Tensor> values;
  for (int step = 1; step <= steps; ++step) {
    model.Draw(step);
    const LateArguments arguments = model.Arguments();
    const absl::Status status =
        model.optimizer().Step({.groups = arguments.groups}, arguments.data,
                               absl::Now() + absl::Minutes(1));
    EXPECT_TRUE(status.ok()) << status;
    model.parameter(2).detach().copy_(arguments.parameters[2].in_order);
  }
  for (size_t i = 0; i < 6; ++i) {
    values.push_back(model.parameter(i).detach().clone());
  }
  return values;
}

// Holds the updates back before the ready of one call.
class Gate {
 public:
  Gate(MapRuntime& runtime, int64_t call) {
    runtime.set_fault(
        [this, from = runtime.calls(), call](const MapRuntime::Call& now) {
          if (now.index - from == call) opened_.wait();
          return absl::OkStatus();
        });
  }
  ~Gate() { Open(); }
  void Open() {
    if (!std::exchange(is_open_, true)) opens_.set_value();
  }

 private:
  bool is_open_ = false;
  std::promise<void> opens_;
  const std::shared_future<void> opened_ = opens_.get_future().share();
};

std::string WhatThrows(const at::Tensor& tensor) {
  try {
    static_cast<void>(tensor.sum());
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

// The work goes on once the gate of a step that was begun is open.
template <typename Work>
void ExpectHeldBack(Gate& gate, const Work& work) {
  std::atomic<bool> has_ended = false;
  std::thread thread([&] {
    work();
    has_ended = true;
  });
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(has_ended);
  gate.Open();
  thread.join();
}

TEST(LateUpdatesTest, AnOperationWaitsForWhatItTakes) {
  const std::vector<at::Tensor> expected = After(1);
  Model model;
  model.Draw(1);
  // A begin, and a push and a ready a chunk.
  Gate gate(model.runtime(), 5);
  const std::unique_ptr<LateUpdates> updates = model.Begin();
  std::thread writer([&] { model.parameter(5).mutable_grad().zero_(); });
  ExpectHeldBack(gate, [&] {
    EXPECT_TRUE(model.parameter(5).detach().equal(expected[5]));
  });
  writer.join();
  EXPECT_TRUE(updates->Wait().ok());
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(model.parameter(i).detach().equal(expected[i])) << i;
  }
}

TEST(LateUpdatesTest, AListOfListsIsWaitedForToo) {
  using Lists = std::vector<std::vector<at::Tensor>>;
  const std::vector<at::Tensor> expected = After(1);
  const auto last_value = c10::Dispatcher::singleton()
                              .findSchemaOrThrow("terrace_test::last_value", "")
                              .typed<at::Tensor(const Lists&)>();
  Model model;
  model.Draw(1);
  Gate gate(model.runtime(), 5);
  const std::unique_ptr<LateUpdates> updates = model.Begin();
  ExpectHeldBack(gate, [&] {
    const at::Tensor value = last_value.call(
        {{at::ones({1})}, {model.parameter(0), model.parameter(5)}});
    EXPECT_EQ(value.item<float>(), expected[5][0].item<float>());
  });
  EXPECT_TRUE(updates->Wait().ok());
}

TEST(LateUpdatesTest, ABackwardPassWaitsForAll) {
  const std::vector<at::Tensor> expected = After(1);
  Model model;
  model.Draw(1);
  Gate gate(model.runtime(), 5);
  const std::unique_ptr<LateUpdates> updates = model.Begin();
  const at::Tensor other = at::ones({3}).set_requires_grad(true);
  const at::Tensor loss = other.sum();
  ExpectHeldBack(gate, [&] { loss.backward(); });
  EXPECT_TRUE(updates->Wait().ok());
}

TEST(LateUpdatesTest, TheOrderIsThatOfTheOperationsThenAsBefore) {
  Model model;
  model.Draw(1);
  LateArguments arguments = model.Arguments();
  arguments.order = {5, 4, 3};
  auto updates = LateUpdates::Begin(model.optimizer(), std::move(arguments));
  ASSERT_TRUE(updates.ok());
  EXPECT_TRUE((*updates)->Wait().ok());
  static_cast<void>(model.parameter(4).sum());
  static_cast<void>(model.parameter(1).sum());
  const std::vector<int> order = (*updates)->order();
  ASSERT_GE(order.size(), 3u);
  EXPECT_EQ(order[0], 4);
}

TEST(LateUpdatesTest, WhatFailsIsToldAndTriedAgainToTheSameBits) {
  const std::vector<at::Tensor> expected = After(2);
  int64_t failures = 0;
  for (int64_t call = 1;; ++call) {
    SCOPED_TRACE(absl::StrCat("call ", call));
    Model model;
    model.Draw(1);
    ASSERT_TRUE(model.Begin()->Wait().ok());
    model.Draw(2);
    const int64_t from = model.runtime().calls();
    model.runtime().set_fault([=](const MapRuntime::Call& now) {
      return now.index - from >= call ? absl::UnknownError("path 1: EIO")
                                      : absl::OkStatus();
    });
    const std::unique_ptr<LateUpdates> updates = model.Begin();
    const absl::Status status = updates->Wait();
    model.runtime().set_fault(nullptr);
    if (status.ok()) break;
    ++failures;
    EXPECT_THAT(std::string(status.message()), HasSubstr("path 1: EIO"));
    for (size_t i = 0; i < 6; ++i) {
      const std::string said = WhatThrows(model.parameter(i));
      if (said.empty()) continue;
      EXPECT_THAT(said, HasSubstr(absl::StrCat("terrace: parameter 'p", i)));
      EXPECT_THAT(said, HasSubstr("path 1: EIO"));
      EXPECT_EQ(WhatThrows(model.parameter(i).grad()), "");
    }
    ASSERT_TRUE(updates->Retry().ok());
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(model.parameter(i).detach().equal(expected[i])) << i;
      EXPECT_NE(model.parameter(i).data_ptr(), nullptr);
    }
  }
  EXPECT_GE(failures, 6);
  EXPECT_TRUE(UpdateNet::Get().pending().empty());
}

// The program has the gradient still, and the step knows it no more.
TEST(LateUpdatesTest, AGradientThatWasTakenOutIsWrittenAfterTheStep) {
  Model model;
  model.Draw(1);
  const at::Tensor gradient = model.parameter(5).grad();
  model.runtime().set_fault([](const MapRuntime::Call& now) {
    return now.kind == CallKind::kReady ? absl::UnknownError("path 1: EIO")
                                        : absl::OkStatus();
  });
  const std::unique_ptr<LateUpdates> updates = model.Begin();
  EXPECT_FALSE(updates->Wait().ok());
  model.runtime().set_fault(nullptr);
  model.parameter(5).mutable_grad().reset();
  EXPECT_ANY_THROW(gradient.zero_());
  EXPECT_ANY_THROW(gradient.sum());
  ASSERT_TRUE(updates->Retry().ok());
  gradient.zero_();
  EXPECT_EQ(gradient.sum().item<float>(), 0);
}

TEST(LateUpdatesTest, WhatIsGivenUpIsUsedAsItIs) {
  Model model;
  model.Draw(1);
  model.runtime().set_fault([](const MapRuntime::Call& now) {
    return now.kind == CallKind::kReady ? absl::UnknownError("path 1: EIO")
                                        : absl::OkStatus();
  });
  std::unique_ptr<LateUpdates> updates = model.Begin();
  EXPECT_FALSE(updates->Wait().ok());
  model.runtime().set_fault(nullptr);
  EXPECT_THAT(WhatThrows(model.parameter(5)), HasSubstr("'p5'"));
  const absl::Status raw = UpdateNet::Get().Await(model.parameter(5).storage());
  EXPECT_TRUE(absl::IsFailedPrecondition(raw)) << raw;
  updates.reset();
  EXPECT_EQ(WhatThrows(model.parameter(5)), "");
  EXPECT_TRUE(UpdateNet::Get().Await(model.parameter(5).storage()).ok());
  EXPECT_TRUE(model.optimizer().incomplete());
}

class LateHookTest : public HookTest {};

TEST_F(LateHookTest, WhatIsLeasedAsItIsGivenUpIsUsableAtOnce) {
  Make(1 << 20);
  Model model;
  const at::Tensor parameter = Managed("p5", model.parameter(5));
  const at::Tensor before = parameter.detach().clone();
  const at::Tensor view = parameter.detach().view({-1});
  model.Draw(1);
  auto lease = hook().MakeLease(parameter, Hook::Access::kWrite);
  ASSERT_TRUE(lease.ok()) << lease.status();
  model.runtime().set_fault([](const MapRuntime::Call& now) {
    return now.kind == CallKind::kReady ? absl::UnknownError("path 1: EIO")
                                        : absl::OkStatus();
  });
  std::unique_ptr<LateUpdates> updates = model.Begin();
  EXPECT_FALSE(updates->Wait().ok());
  model.runtime().set_fault(nullptr);
  EXPECT_THAT(WhatThrows(parameter), HasSubstr("'p5'"));
  updates.reset();
  EXPECT_EQ(WhatThrows(parameter), "");
  EXPECT_EQ(WhatThrows(view), "");
  lease->End();
  EXPECT_TRUE(hook().Manages(parameter));
  EXPECT_TRUE(parameter.detach().equal(before));
  hook().EvictAll();
  EXPECT_TRUE(parameter.detach().equal(before));
}

TEST(LateUpdatesTest, ValuesThatAreReplacedMeanwhileStayUntilTheEnd) {
  const std::vector<at::Tensor> expected = After(1);
  Model model;
  model.Draw(1);
  Gate gate(model.runtime(), 5);
  const std::unique_ptr<LateUpdates> updates = model.Begin();
  const at::Tensor others = at::zeros({kElements});
  // Not by an operation, which would wait.
  model.parameter(5).unsafeGetTensorImpl()->set_storage_keep_dtype(
      others.storage());
  gate.Open();
  EXPECT_TRUE(updates->Wait().ok());
  EXPECT_TRUE(model.parameter(5).detach().equal(at::zeros({kElements})));
  EXPECT_TRUE(model.parameter(4).detach().equal(expected[4]));
}

TEST(LateUpdatesTest, AThreadThatWaitsHearsOfItsParameterBeforeTheNextRead) {
  const std::vector<at::Tensor> expected = After(1);
  Model model;
  model.Draw(1);
  // The first chunks are there, the others not before it was seen.
  model.runtime().set_fault(
      [&, from = model.runtime().calls()](const MapRuntime::Call& now) {
        if (now.index - from == 6) model.runtime().set_stalled(true);
        return absl::OkStatus();
      });
  const std::unique_ptr<LateUpdates> updates = model.Begin();
  EXPECT_TRUE(model.parameter(0).detach().equal(expected[0]));
  model.runtime().set_stalled(false);
  EXPECT_TRUE(updates->Wait().ok());
}

TEST(LateUpdatesTest, AVersionCountsAtOnceAndNotAgain) {
  Model model;
  model.Draw(1);
  const auto version = [&](size_t i) { return model.parameter(i)._version(); };
  const int64_t before = version(0), odd = version(2);
  const std::unique_ptr<LateUpdates> updates = model.Begin();
  EXPECT_EQ(version(0), before + 1);
  EXPECT_EQ(version(2), odd + 1);
  EXPECT_TRUE(updates->Wait().ok());
  EXPECT_EQ(version(0), before + 1);
  EXPECT_EQ(version(2), odd + 1);
}

TEST(LateUpdatesTest, OneThatIsSkippedHasNone) {
  Model model({.skip_nonfinite = true});
  model.Draw(1);
  model.parameter(3).mutable_grad().fill_(
      std::numeric_limits<float>::quiet_NaN());
  const at::Tensor before = model.parameter(0).detach().clone();
  EXPECT_EQ(model.Begin(), nullptr);
  EXPECT_TRUE(model.parameter(0).detach().equal(before));
  EXPECT_TRUE(UpdateNet::Get().pending().empty());
}

}  // namespace
}  // namespace terrace
