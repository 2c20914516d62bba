// Every way through an operation finds the values; what needs none leaves the
// bytes where they are.
#include <ATen/ops/_foreach_add.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

using Operation = std::function<at::Tensor(const at::Tensor&)>;

struct NamedOperation {
  const char* name;
  Operation run;
};

// Of 64 x 64.
const std::vector<NamedOperation>& FirstOperations() {
  static const auto& operations = *new std::vector<NamedOperation>{
      {"add", [](const at::Tensor& t) { return t + 1; }},
      {"view chain",
       [](const at::Tensor& t) {
         return t.view({32, 128}).t().select(0, 3).slice(0, 1, 20) * 2;
       }},
      {"detach", [](const at::Tensor& t) { return t.detach() * 2; }},
      {"clone", [](const at::Tensor& t) { return t.clone(); }},
      {"copy_ from",
       [](const at::Tensor& t) {
         return at::zeros({64, 64}).copy_(t);
       }},
      {"copy_ to",
       [](const at::Tensor& t) {
         return t.copy_(at::ones({64, 64}));
       }},
      {"sum", [](const at::Tensor& t) { return t.sum(); }},
      {"item",
       [](const at::Tensor& t) {
         return at::full({1}, t.select(0, 5)[7].item<double>());
       }},
      {"mm", [](const at::Tensor& t) { return t.mm(t); }},
      {"linear",
       [](const at::Tensor& t) {
         return at::linear(at::ones({3, 64}), t, t.select(0, 1));
       }},
      {"conv1d",
       [](const at::Tensor& t) {
         return at::conv1d(at::ones({1, 64, 9}), t.view({64, 64, 1}));
       }},
      {"embedding",
       [](const at::Tensor& t) {
         return at::embedding(t, at::arange(0, 64, 7));
       }},
      {"index",
       [](const at::Tensor& t) { return t.index({at::arange(0, 64, 3)}); }},
      {"cat",
       [](const at::Tensor& t) {
         return at::cat({t, t.t(), t});
       }},
      {"stack of views", [](const at::Tensor& t) {
         return at::stack({t[0], t[5], t[0]});
       }}};
  return operations;
}

const std::vector<NamedOperation>& SecondOperations() {
  static const auto& operations = *new std::vector<NamedOperation>{
      {"foreach",
       [](const at::Tensor& t) {
         const std::vector<at::Tensor> list = {t, at::ones({3})};
         at::_foreach_add_(list, 1.5);
         return t;
       }},
      {"out=",
       [](const at::Tensor& t) {
         at::Tensor out = t;
         return at::add_out(out, at::ones({64, 64}), at::ones({64, 64}));
       }},
      {"fill_", [](const at::Tensor& t) { return t.fill_(3); }},
      {"in place on a view",
       [](const at::Tensor& t) {
         t.select(0, 3).mul_(2);
         return t;
       }},
      {"print",
       [](const at::Tensor& t) {
         std::ostringstream text;
         text << t;
         return at::full({1}, static_cast<double>(
                                  std::hash<std::string>()(text.str()) >> 12));
       }},
      {"to double", [](const at::Tensor& t) { return t.to(at::kDouble); }},
      {"equal",
       [](const at::Tensor& t) {
         return at::full({1}, t.equal(t.clone()) ? 1 : 0);
       }},
      {"set_",
       [](const at::Tensor& t) {
         return at::empty({0}).set_(t.storage(), 64, {10}, {1}) + 1;
       }},
      {"softmax", [](const at::Tensor& t) { return at::softmax(t, 1); }}};
  return operations;
}

TEST_F(HookTest, EveryOperationFindsTheValues) {
  Make(64 << 10, 0);
  std::vector<NamedOperation> all = FirstOperations();
  all.insert(all.end(), SecondOperations().begin(), SecondOperations().end());
  for (const NamedOperation& operation : all) {
    SCOPED_TRACE(operation.name);
    const at::Tensor plain = at::randn({64, 64});
    const at::Tensor managed = Managed(operation.name, plain.clone());
    EvictFromMemory();
    ASSERT_TRUE(IsCold(managed));
    const at::Tensor expected = operation.run(plain);
    const at::Tensor found = operation.run(managed);
    EXPECT_TRUE(found.equal(expected));
    // And what it wrote is there, once more.
    EvictFromMemory();
    EXPECT_TRUE(managed.equal(plain));
  }
  EXPECT_EQ(hook().stats().failures, 0);
}

TEST_F(HookTest, OperationsOnShapesLeaveTheBytesAway) {
  Make(1 << 20);
  const std::vector<NamedOperation> operations = {
      {"alias", [](const at::Tensor& t) { return at::alias(t); }},
      {"as_strided",
       [](const at::Tensor& t) {
         return t.as_strided({8, 8}, {64, 2}, 5);
       }},
      {"detach_", [](const at::Tensor& t) { return t.detach_(); }},
      {"expand",
       [](const at::Tensor& t) {
         return t.expand({2, 64, 64});
       }},
      {"permute",
       [](const at::Tensor& t) {
         return t.permute({1, 0});
       }},
      {"select", [](const at::Tensor& t) { return t.select(1, 3); }},
      {"slice", [](const at::Tensor& t) { return t.slice(0, 2, 60, 3); }},
      {"squeeze", [](const at::Tensor& t) { return t.squeeze(); }},
      {"squeeze one", [](const at::Tensor& t) { return t.squeeze(1); }},
      {"t", [](const at::Tensor& t) { return t.t(); }},
      {"transpose", [](const at::Tensor& t) { return t.transpose(0, 1); }},
      {"unsqueeze", [](const at::Tensor& t) { return t.unsqueeze(0); }},
      {"view", [](const at::Tensor& t) { return t.view({-1}); }}};
  for (const NamedOperation& operation : operations) {
    SCOPED_TRACE(operation.name);
    const at::Tensor plain = at::randn({64, 64});
    const at::Tensor managed = Managed(operation.name, plain.clone());
    hook().EvictAll();
    const at::Tensor view = operation.run(managed);
    EXPECT_TRUE(IsCold(managed));
    EXPECT_TRUE(view.equal(operation.run(plain)));
  }
  const at::Tensor managed = Cold("empty_like", {64, 64});
  EXPECT_EQ(at::empty_like(managed).numel(), 64 * 64);
  EXPECT_TRUE(IsCold(managed));
}

// LibTorch gives a storage that grows other memory: it is managed no more.
TEST_F(HookTest, AStorageThatGrowsKeepsItsValuesAndLeaves) {
  Make(1 << 20);
  const at::Tensor plain = at::randn({100});
  at::Tensor managed = Managed("a", plain.clone());
  hook().EvictAll();
  managed.resize_({200});
  EXPECT_TRUE(managed.slice(0, 0, 100).equal(plain));
  hook().EvictAll();
  EXPECT_FALSE(IsCold(managed));
  EXPECT_EQ(hook().stats().managed_tensors, 0);
  EXPECT_EQ(tensors_below(), 0);
  // It may be handed over again.
  Managed("a", managed);
  hook().EvictAll();
  EXPECT_TRUE(IsCold(managed));
  EXPECT_TRUE(managed.slice(0, 0, 100).equal(plain));
}

// More tensors in one operation than the window holds.
TEST_F(HookTest, AnOperationMayTakeMoreThanTheWindow) {
  Make(64 << 10, 512 << 10);
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> plain;
  for (int i = 0; i < 10; ++i) {
    plain.push_back(at::randn({5000}));
    tensors.push_back(Managed(std::to_string(i), plain.back().clone()));
  }
  EXPECT_TRUE(at::cat(tensors).equal(at::cat(plain)));
  const HookStats stats = hook().stats();
  EXPECT_GT(stats.over_budget_bytes, 100 << 10);
  EXPECT_LE(stats.window_used_bytes, 64 << 10);  // given back at its end
}

}  // namespace
}  // namespace terrace
