// What the library holds without an operation, what operations wait for before
// they pin anything, and storages that are barred though their bytes come and
// go.
#include <ATen/ATen.h>

#include <functional>
#include <future>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/hook/held_bytes.h"
#include "libtorch/hook/managed_storage.h"
#include "libtorch/hook/operation_gate.h"
#include "libtorch/hook/operation_net.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

c10::StorageImpl& StorageOf(const at::Tensor& tensor) {
  return *tensor.storage().unsafeGetStorageImpl();
}

float First(const HeldBytes& held) {
  return *reinterpret_cast<const float*>(held.data());
}

class HeldBytesTest : public HookTest {};

TEST_F(HeldBytesTest, BringsWhatIsAwayAndKeepsItUntilItGoes) {
  Make(1 << 20);
  const at::Tensor plain = at::randn({64, 64});
  const at::Tensor tensor = Managed("a", plain.clone());
  hook().EvictAll();
  {
    auto held = HeldBytes::Hold(StorageOf(tensor), {});
    ASSERT_TRUE(held.ok()) << held.status();
    EXPECT_EQ(First(*held), plain[0][0].item<float>());
    EXPECT_EQ(hook().EvictAll(), 0);
    EXPECT_FALSE(IsCold(tensor));
  }
  EXPECT_EQ(hook().EvictAll(), 1);
  EXPECT_TRUE(tensor.equal(plain));
}

TEST_F(HeldBytesTest, WhatIsWrittenGoesBelow) {
  Make(1 << 20);
  const at::Tensor tensor = Managed("a", at::zeros({64, 64}));
  EvictFromMemory();
  for (const bool is_beside : {false, true}) {
    auto held = HeldBytes::Hold(StorageOf(tensor),
                                {.is_written = true, .is_beside = is_beside});
    ASSERT_TRUE(held.ok()) << held.status();
    *reinterpret_cast<float*>(held->data()) += 2;
  }
  EvictFromMemory();
  EXPECT_EQ(tensor[0][0].item<float>(), 4);
  EXPECT_EQ(hook().stats().unmarked_writes, 0);
}

TEST_F(HeldBytesTest, OfWhatIsNotManagedTheyAreWhereTheyAre) {
  const at::Tensor tensor = at::ones({4});
  {
    auto held = HeldBytes::Hold(StorageOf(tensor), {});
    ASSERT_TRUE(held.ok()) << held.status();
    EXPECT_EQ(held->data(), tensor.data_ptr());
  }
  const at::Tensor copy = at::_lazy_clone(tensor);
  auto held = HeldBytes::Hold(StorageOf(copy), {.is_written = true});
  ASSERT_TRUE(held.ok()) << held.status();
  *reinterpret_cast<float*>(held->data()) = 5;
  EXPECT_EQ(copy[0].item<float>(), 5);
  EXPECT_EQ(tensor[0].item<float>(), 1);
}

TEST_F(HeldBytesTest, AFetchThatFailsMayBeTriedAgain) {
  Make(1 << 20);
  const at::Tensor tensor = Managed("a", at::ones({64, 64}));
  EvictFromMemory();
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  auto held = HeldBytes::Hold(StorageOf(tensor), {});
  EXPECT_FALSE(held.ok());
  EXPECT_THAT(std::string(held.status().message()), HasSubstr("'a'"));
  world().faults().Clear();
  EXPECT_EQ(tensor.sum().item<float>(), 64 * 64);
}

TEST_F(HeldBytesTest, BytesThatAreGoneAreRefused) {
  Make(1 << 20);
  const at::Tensor tensor = Managed("a", at::ones({64, 64}));
  ASSERT_TRUE(hook().Close(Hook::AtClose::kRefuse).ok());
  const auto held = HeldBytes::Hold(StorageOf(tensor), {});
  EXPECT_TRUE(absl::IsFailedPrecondition(held.status())) << held.status();
}

class Gate final : public OperationGate {
 public:
  void AwaitOperands(const at::RecordFunction& function) override {
    asked.push_back(function.name());
    if (look) look();
  }
  absl::Status Await(const c10::Storage& /*storage*/,
                     bool is_written) override {
    asked.push_back(is_written ? "lease to write" : "lease");
    return answer;
  }
  bool IsFree(const c10::Storage& /*storage*/, bool /*is_written*/) override {
    return answer.ok();
  }
  void AwaitEverything() override { asked.push_back("everything"); }

  std::vector<std::string> asked;
  std::function<void()> look;
  absl::Status answer;
};

class GateTest : public HookTest {
 protected:
  GateTest() { OperationNet::Get().SetGate(&gate_); }
  ~GateTest() override { OperationNet::Get().SetGate(nullptr); }
  Gate& gate() { return gate_; }

 private:
  Gate gate_;
};

TEST_F(GateTest, IsAskedBeforeAnythingIsPinned) {
  Make(1 << 20);
  const at::Tensor tensor = Cold("a", {64, 64});
  gate().asked.clear();
  gate().look = [&] { EXPECT_EQ(hook().EvictAll(), 0) << "it was brought"; };
  at::neg(tensor);
  gate().look = nullptr;
  ASSERT_FALSE(gate().asked.empty());
  EXPECT_EQ(gate().asked.front(), "aten::neg");
  OperationNet::Get().SetGate(nullptr);
  gate().asked.clear();
  at::neg(tensor);
  EXPECT_TRUE(gate().asked.empty());
}

TEST_F(GateTest, IsAskedBeforeALeaseAndBeforeTheEnd) {
  Make(1 << 20);
  const at::Tensor tensor = Cold("a", {64, 64});
  gate().asked.clear();
  EXPECT_TRUE(hook().MakeLease(tensor, Hook::Access::kRead).ok());
  EXPECT_TRUE(hook().MakeLease(tensor, Hook::Access::kWrite).ok());
  EXPECT_EQ(gate().asked,
            std::vector<std::string>({"lease", "lease to write"}));
  hook().EvictAll();
  gate().answer = absl::FailedPreconditionError("not updated");
  EXPECT_EQ(hook().MakeLease(tensor, Hook::Access::kRead).status(),
            gate().answer);
  EXPECT_TRUE(IsCold(tensor));
  EXPECT_TRUE(hook().Close(Hook::AtClose::kRestore).ok());
  EXPECT_EQ(gate().asked.back(), "everything");
}

TEST_F(GateTest, AHookThatEndsWaitsToo) {
  Make(1 << 20);
  const at::Tensor tensor = Cold("a", {64, 64});
  gate().asked.clear();
  EndHook();
  EXPECT_EQ(gate().asked, std::vector<std::string>({"everything"}));
}

TEST_F(GateTest, IsAskedBeforeATensorIsTakenOver) {
  Make(1 << 20);
  const at::Tensor tensor = at::ones({64, 64});
  const void* const memory = tensor.data_ptr();
  gate().asked.clear();
  gate().answer = absl::FailedPreconditionError("not updated");
  EXPECT_EQ(hook().Manage({{"a", tensor}}), gate().answer);
  EXPECT_EQ(gate().asked, std::vector<std::string>({"lease to write"}));
  EXPECT_FALSE(hook().Manages(tensor));
  EXPECT_EQ(tensor.data_ptr(), memory);
  gate().answer = absl::OkStatus();
  EXPECT_TRUE(hook().Manage({{"a", tensor}}).ok());
  EXPECT_TRUE(hook().Manages(tensor));
  gate().asked.clear();  // what is here already has nothing to wait for
  EXPECT_TRUE(hook().Manage({{"a", tensor}}).ok());
  EXPECT_TRUE(gate().asked.empty());
}

TEST_F(GateTest, WhatIsSavedWithinAnOperationIsLeftToItsUpdate) {
  Make(1 << 20);
  hook().BeginSaving(1 << 18);
  hook().BeginStep();
  const at::Tensor pending = at::ones({64, 64}), other = at::ones({64, 64});
  gate().answer = absl::FailedPreconditionError("not updated");
  auto saved = hook().ManageSaved(pending);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_FALSE(*saved);
  EXPECT_FALSE(hook().Manages(pending));
  gate().answer = absl::OkStatus();
  saved = hook().ManageSaved(other);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_TRUE(*saved);
}

class BarTest : public HookTest {
 protected:
  static ManagedStorage& ManagedOf(const at::Tensor& tensor) {
    return *OperationNet::Get().Find(&StorageOf(tensor));
  }
};

TEST_F(BarTest, UsesThrowWhereverTheBytesAre) {
  Make(1 << 20);
  at::Tensor tensor = Cold("a", {64, 64});
  ManagedOf(tensor).Bar("terrace: not yet");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(TextThrown([&] { tensor.sum(); }), HasSubstr("not yet"));
    EXPECT_THAT(TextThrown([&] { tensor.data_ptr(); }), HasSubstr("not yet"));
    hook().EvictAll();
    EXPECT_THAT(TextThrown([&] { tensor.data_ptr(); }), HasSubstr("not yet"));
  }
  // The library's own copies go on.
  auto held = HeldBytes::Hold(StorageOf(tensor), {});
  EXPECT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(hook().stats().failures, 0);
}

TEST_F(BarTest, WhatCannotBeReadMeanwhileIsThereAgainAfterwards) {
  Make(64 << 10);
  const at::Tensor plain = at::randn({64, 64});
  const at::Tensor tensor = Managed("a", plain.clone());
  EvictFromMemory();
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  ManagedStorage& managed = ManagedOf(tensor);
  managed.Bar("terrace: not yet");
  EXPECT_THAT(TextThrown([&] { tensor.sum(); }), HasSubstr("not yet"));
  EXPECT_THAT(TextThrown([&] {
                at::cat({tensor, tensor});
              }),
              HasSubstr("not yet"));
  EXPECT_EQ(hook().stats().failures, 0);
  managed.Unbar();
  world().faults().Clear();
  EXPECT_TRUE(tensor.equal(plain));
}

TEST_F(BarTest, ItIsTakenBackAndViewsOfBeforeAreUsableToo) {
  Make(1 << 20);
  const at::Tensor plain = at::randn({64, 64});
  for (const bool is_cold : {false, true}) {
    at::Tensor tensor = Managed(is_cold ? "b" : "a", plain.clone());
    const at::Tensor view = tensor.view({-1});
    if (is_cold) hook().EvictAll();
    ManagedStorage& managed = ManagedOf(tensor);
    managed.Bar("terrace: not yet");
    EXPECT_NE(TextThrown([&] { tensor.sum(); }), "");
    managed.Unbar();
    EXPECT_TRUE(hook().Manages(tensor));
    EXPECT_TRUE(view.equal(plain.view({-1})));
    EXPECT_TRUE(tensor.equal(plain));
    hook().EvictAll();
    EXPECT_TRUE(IsCold(tensor));
    EXPECT_TRUE(tensor.equal(plain));
    tensor.add_(1);
    EvictFromMemory();
    EXPECT_TRUE(tensor.equal(plain + 1));
  }
}

// A lease keeps the storage in use.
TEST_F(BarTest, OneThatIsInUseIsTakenBackAtOnce) {
  Make(1 << 20);
  const at::Tensor plain = at::randn({64, 64});
  const at::Tensor tensor = Managed("a", plain.clone());
  const at::Tensor alias = tensor.detach();
  auto lease = hook().MakeLease(tensor, Hook::Access::kRead);
  ASSERT_TRUE(lease.ok()) << lease.status();
  ManagedOf(tensor).Bar("terrace: not yet");
  EXPECT_THAT(TextThrown([&] { tensor.sum(); }), HasSubstr("not yet"));
  ManagedOf(tensor).Unbar();
  EXPECT_TRUE(tensor.equal(plain));
  lease->End();
  hook().EvictAll();
  EXPECT_TRUE(alias.equal(plain));
}

}  // namespace
}  // namespace terrace
