// What was refused is usable again, views of it too, whoever has it by then.
#include "libtorch/step/late/refused_storage.h"

#include <ATen/ATen.h>

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class RefusedStorageTest : public HookTest {
 protected:
  // As an operation that takes the tensor is refused.
  void Refuse(const at::Tensor& tensor) {
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    pending_.Add(0, "p", storage, nullptr, nullptr);
    pending_.End(absl::UnknownError("no disk"));
    const PendingStorages::Operand operand = {storage, false};
    for (int i = 0; i < 2; ++i) {
      pending_.Await({&operand, 1}, [&](size_t, const absl::Status& why) {
        return std::make_shared<RefusedStorage>(*storage, why);
      });
    }
    EXPECT_THAT(TextThrown([&] { tensor.sum(); }), HasSubstr("no disk"));
  }

  PendingStorages pending_;
};

TEST_F(RefusedStorageTest, ViewsThatWereMadeBeforeAreUsableToo) {
  at::Tensor tensor = at::ones({4});
  const at::Tensor view = tensor.view({2, 2});
  Refuse(tensor);
  EXPECT_THAT(TextThrown([&] { view.sum(); }), HasSubstr("no disk"));
  tensor = at::Tensor();  // a view alone has the storage
  TakeRefusalsBack(pending_);
  EXPECT_EQ(view.sum().item<float>(), 4);
  EXPECT_THAT(pending_.TakeRefused(), IsEmpty());
}

TEST_F(RefusedStorageTest, OneThatHasEndedIsNotLookedAt) {
  at::Tensor tensor = at::ones({4});
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>
      alive(tensor.getIntrusivePtr());
  Refuse(tensor);
  tensor = at::Tensor();
  EXPECT_TRUE(alive.expired());
  TakeRefusalsBack(pending_);
}

TEST_F(RefusedStorageTest, AManagedOneIsUsableWhereverItsBytesAre) {
  Make(1 << 20);
  const at::Tensor plain = at::randn({64, 64});
  for (const bool is_cold : {false, true}) {
    const at::Tensor tensor = Managed(is_cold ? "b" : "a", plain.clone());
    const at::Tensor view = tensor.view({-1});
    Refuse(tensor);
    if (is_cold) hook().EvictAll();
    TakeRefusalsBack(pending_);
    EXPECT_TRUE(hook().Manages(view));
    EXPECT_TRUE(view.equal(plain.view({-1})));
    hook().EvictAll();
    EXPECT_TRUE(tensor.equal(plain));
  }
}

TEST_F(RefusedStorageTest, AHookThatHasClosedMeanwhileLeavesItsBytes) {
  Make(1 << 20);
  const at::Tensor tensor = Managed("a", at::ones({64, 64}));
  Refuse(tensor);
  hook().EvictAll();
  ASSERT_TRUE(hook().Close(Hook::AtClose::kRestore).ok());
  EXPECT_THAT(TextThrown([&] { tensor.sum(); }), HasSubstr("no disk"));
  TakeRefusalsBack(pending_);
  EXPECT_EQ(tensor.sum().item<float>(), 64 * 64);
}

TEST_F(RefusedStorageTest, OneThatAHookLeftWithoutBytesIsRefusedForThat) {
  Make(1 << 20);
  const at::Tensor tensor = Managed("a", at::ones({64, 64}));
  Refuse(tensor);
  ASSERT_TRUE(hook().Close(Hook::AtClose::kRefuse).ok());
  TakeRefusalsBack(pending_);
  EXPECT_THAT(TextThrown([&] { tensor.sum(); }), HasSubstr("hook is closed"));
}

}  // namespace
}  // namespace terrace
