// A read that fails ends the operation with our text: never with a number, and
// never with a crash.
#include <ATen/ops/_foreach_add.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

struct NamedUse {
  const char* name;
  std::function<void(const at::Tensor&)> run;
};

// Of 64 x 64.
const std::vector<NamedUse>& Uses() {
  static const auto& uses = *new std::vector<NamedUse>{
      {"add", [](const at::Tensor& t) { t + 1; }},
      {"mm", [](const at::Tensor& t) { t.mm(t); }},
      {"sum", [](const at::Tensor& t) { t.sum(); }},
      {"copy_ from",
       [](const at::Tensor& t) {
         at::zeros({64, 64}).copy_(t);
       }},
      {"copy_ to",
       [](const at::Tensor& t) {
         t.copy_(at::zeros({64, 64}));
       }},
      {"conv1d",
       [](const at::Tensor& t) {
         at::conv1d(at::ones({1, 64, 9}), t.view({64, 64, 1}));
       }},
      {"embedding",
       [](const at::Tensor& t) { at::embedding(t, at::arange(0, 64, 7)); }},
      {"index", [](const at::Tensor& t) { t.index({at::arange(0, 64, 3)}); }},
      {"foreach",
       [](const at::Tensor& t) {
         const std::vector<at::Tensor> list = {at::ones({3}), t};
         at::_foreach_add_(list, 1.5);
       }},
      {"item", [](const at::Tensor& t) { t.select(0, 5)[7].item(); }},
      {"fill_", [](const at::Tensor& t) { t.fill_(3); }},
      {"out=",
       [](const at::Tensor& t) {
         at::Tensor out = t;
         at::add_out(out, at::ones({64, 64}), at::ones({64, 64}));
       }},
      {"clone", [](const at::Tensor& t) { t.clone(); }},
      {"cat",
       [](const at::Tensor& t) {
         at::cat({t, t});
       }},
      {"softmax", [](const at::Tensor& t) { at::softmax(t, 1); }},
      {"layer_norm", [](const at::Tensor& t) {
         at::layer_norm(at::ones({2, 64}), {64}, t.select(0, 1), {});
       }}};
  return uses;
}

class HookFailureTest : public HookTest {
 protected:
  // Below, and cannot be read.
  at::Tensor Unreadable(const std::string& name, const Fault& fault) {
    const at::Tensor tensor = Managed(name, at::randn({64, 64}));
    EvictFromMemory();
    world().faults().FailAll(fault, CallFilter::kReads);
    return tensor;
  }
  at::Tensor Unreadable(const std::string& name) {
    return Unreadable(name, {.kind = FaultKind::kError, .error = ENXIO});
  }
};

TEST_F(HookFailureTest, EveryOperationThrowsOurText) {
  Make(64 << 10);
  for (const NamedUse& use : Uses()) {
    SCOPED_TRACE(use.name);
    const at::Tensor tensor = Unreadable(use.name);
    EXPECT_THAT(
        TextThrown([&] { use.run(tensor); }),
        AllOf(StartsWith("terrace: '" + std::string(use.name) + "' 16 KiB: "),
              HasSubstr("ENXIO")));
    world().faults().Clear();
  }
  EXPECT_EQ(hook().stats().failures, static_cast<int64_t>(Uses().size()));
  EXPECT_TRUE(absl::IsUnavailable(hook().error())) << hook().error();
}

TEST_F(HookFailureTest, ShortReadsAndWrongBytesThrowAsWell) {
  Make(64 << 10);
  for (const FaultKind kind : {FaultKind::kZero, FaultKind::kBitFlip}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const std::string name = "kind " + std::to_string(static_cast<int>(kind));
    const at::Tensor tensor =
        Unreadable(name, {.kind = kind, .flipped_byte = 5000});
    EXPECT_THAT(TextThrown([&] { tensor.sum(); }),
                StartsWith("terrace: '" + name));
    world().faults().Clear();
  }
  EXPECT_TRUE(absl::IsDataLoss(hook().error()) ||
              absl::IsUnavailable(hook().error()))
      << hook().error();
}

TEST_F(HookFailureTest, ABackwardThatCannotReadThrows) {
  Make(64 << 10);
  const at::Tensor weight =
      Managed("weight", at::randn({64, 64})).set_requires_grad(true);
  const at::Tensor input = at::randn({64, 64}).set_requires_grad(true);
  const at::Tensor loss = input.mm(weight).sum();
  EvictFromMemory();
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  EXPECT_THAT(TextThrown([&] { torch::autograd::backward({loss}, {}); }),
              StartsWith("terrace: 'weight' 16 KiB: "));
  EXPECT_FALSE(input.grad().defined());
}

TEST_F(HookFailureTest, OthersGoOnAndRetryBringsWhatFailed) {
  Make(64 << 10);
  const at::Tensor other = Managed("other", at::ones({64, 64}));
  const at::Tensor expected = at::randn({64, 64});
  const at::Tensor tensor = Managed("a", expected.clone());
  for (int i = 0; i < 2; ++i) {
    EvictFromMemory();
    EXPECT_TRUE(IsCold(tensor));  // and below again, the second time
    world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                             CallFilter::kReads);
    EXPECT_THAT(TextThrown([&] { tensor.sum(); }), StartsWith("terrace: 'a'"));
    world().faults().Clear();
    EXPECT_EQ(other.sum().item<float>(), 64 * 64);
    EXPECT_TRUE(hook().Retry().ok());
    EXPECT_TRUE(hook().Manages(tensor));
    EXPECT_TRUE(tensor.equal(expected));
  }
  EXPECT_EQ(hook().stats().failures, 2);
  absl::Duration blocked;  // what came back has waited as long as before
  for (const BlockedOn& each : hook().blocked()) blocked += each.duration;
  EXPECT_EQ(blocked, hook().stats().blocked);
}

TEST_F(HookFailureTest, ARetryThatFailsMayBeRepeated) {
  Make(64 << 10);
  const at::Tensor tensor = Unreadable("a");
  EXPECT_NE(TextThrown([&] { tensor.sum(); }), "");
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(hook().Retry().ok());  // the next use fetches
    const std::string thrown = TextThrown([&] { tensor.sum(); });
    EXPECT_THAT(thrown, StartsWith("terrace: 'a'"));
    EXPECT_EQ(thrown.rfind("terrace: "), 0u) << thrown;
  }
  world().faults().Clear();
  ASSERT_TRUE(hook().Retry().ok());
  EXPECT_NE(tensor.abs().sum().item<float>(), 0);
}

TEST_F(HookFailureTest, AViewOfBeforeARetryIsUsableToo) {
  Make(64 << 10);
  const at::Tensor expected = at::randn({64, 64});
  const at::Tensor tensor = Managed("a", expected.clone());
  const at::Tensor view = tensor.view({-1});
  EvictFromMemory();
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  EXPECT_NE(TextThrown([&] { tensor.sum(); }), "");
  world().faults().Clear();
  ASSERT_TRUE(hook().Retry().ok());
  ASSERT_TRUE(tensor.equal(expected));
  EXPECT_TRUE(view.equal(expected.view({-1})));
  EXPECT_TRUE(view.is_alias_of(tensor));
}

TEST_F(HookFailureTest, TensorsOfOneStorageComeBackTogether) {
  Make(64 << 10);
  const at::Tensor whole = at::randn({64, 64});
  const at::Tensor expected = whole.clone();
  const at::Tensor part = whole.select(0, 3);
  ASSERT_TRUE(hook().Manage({{"whole", whole}, {"part", part}}).ok());
  const at::Tensor later = whole.select(0, 5);
  ASSERT_TRUE(hook().Manage({{"later", later}}).ok());
  EvictFromMemory();
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  EXPECT_NE(TextThrown([&] { part.sum(); }), "");
  world().faults().Clear();
  ASSERT_TRUE(hook().Retry().ok());
  EXPECT_TRUE(part.equal(expected.select(0, 3)));
  part.fill_(2);
  later.fill_(3);
  EXPECT_EQ(whole.select(0, 3).sum().item<float>(), 2 * 64);
  EXPECT_EQ(whole.select(0, 5).sum().item<float>(), 3 * 64);
}

TEST_F(HookFailureTest, ALeaseSaysWhatFailed) {
  Make(64 << 10);
  const at::Tensor tensor = Unreadable("a");
  const absl::Status status =
      hook().MakeLease(tensor, Hook::Access::kRead).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ENXIO"));
  EXPECT_EQ(hook().error(), status);
}

TEST_F(HookFailureTest, AfterALeaseThatFailedTheTensorCanBeUsed) {
  Make(64 << 10);
  const at::Tensor tensor = Unreadable("a");
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(
        hook().MakeLease(tensor, Hook::Access::kWrite).status()));
  }
  EXPECT_EQ(hook().stats().failures, 2);
  world().faults().Clear();
  EXPECT_NE(tensor.abs().sum().item<float>(), 0);
  EXPECT_TRUE(hook().MakeLease(tensor, Hook::Access::kWrite).ok());
}

// Where nothing can be written, each that is brought takes the room of one that
// has gone to ordinary memory.
TEST_F(HookFailureTest, AFullDiskKeepsNoneFromBeingRestored) {
  Make(64 << 10);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 12; ++i) {
    tensors.push_back(
        Managed("tensor " + std::to_string(i), at::full({64, 64}, i)));
  }
  EvictFromMemory();
  for (int i = 0; i < 3; ++i) tensors[static_cast<size_t>(i)].add_(100);
  hook().EvictAll();  // these are in memory, and nowhere else
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENOSPC},
                           CallFilter::kWrites);
  const absl::Status closed = hook().Close(Hook::AtClose::kRestore);
  EXPECT_TRUE(closed.ok()) << closed;
  for (int i = 0; i < 12; ++i) {
    EXPECT_TRUE(tensors[static_cast<size_t>(i)]
                    .eq(i < 3 ? i + 100 : i)
                    .all()
                    .item<bool>())
        << i;
  }
}

TEST_F(HookFailureTest, ACloseBringsWhatFailedBeforeAndCanBeReadNow) {
  Make(64 << 10);
  const at::Tensor values = at::randn({64, 64});
  const at::Tensor tensor = Managed("a", values.clone());
  EvictFromMemory();
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  EXPECT_THAT(TextThrown([&] { tensor.sum(); }), StartsWith("terrace: 'a'"));
  world().faults().Clear();
  const absl::Status closed = hook().Close(Hook::AtClose::kRestore);
  EXPECT_TRUE(closed.ok()) << closed;
  EXPECT_TRUE(at::equal(tensor, values));
}

TEST_F(HookFailureTest, WhatCannotBeRestoredIsRefusedAndSaid) {
  Make(64 << 10);
  const at::Tensor other = Managed("other", at::ones({64, 64}));
  const at::Tensor tensor = Unreadable("a");
  EXPECT_EQ(TextThrown([&] { tensor.sum(); }).substr(0, 11), "terrace: 'a");
  world().faults().Clear();
  EXPECT_EQ(other.sum().item<float>(), 64 * 64);  // it is here as it is closed
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  EXPECT_FALSE(hook().Close(Hook::AtClose::kRestore).ok());
  world().faults().Clear();
  EXPECT_EQ(other.sum().item<float>(), 64 * 64);
  EXPECT_THAT(TextThrown([&] { tensor.sum(); }), StartsWith("terrace: 'a'"));
  EXPECT_EQ(tensors_below(), 0);
}

}  // namespace
}  // namespace terrace
