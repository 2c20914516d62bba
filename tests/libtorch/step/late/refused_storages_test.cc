// Storages that were refused are usable again, and the tensors of a step that
// goes well are not looked at, since the program may be changing them.
#include "libtorch/step/late/refused_storages.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "libtorch/hook/compat.h"

namespace terrace {
namespace {

std::vector<at::Tensor> NotAsked() {
  ADD_FAILURE() << "the tensors of a step that goes well";
  return {};
}

TEST(RefusedStoragesTest, WithoutARefusalNoTensorIsLookedAt) {
  PendingStorages pending;
  const at::Tensor tensor = at::ones({4});
  pending.Add(0, "p", tensor.storage().unsafeGetStorageImpl(), nullptr,
              nullptr);
  EXPECT_TRUE(RestoreRefused(pending, NotAsked).ok());
  RestoreRefusedLater(pending, NotAsked);
  pending.End(absl::OkStatus());
}

TEST(RefusedStoragesTest, ViewsThatWereMadeBeforeAreUsableToo) {
  PendingStorages pending;
  const at::Tensor tensor = at::ones({4});
  const at::Tensor view = tensor.view({2, 2});
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  pending.Add(0, "p", storage, nullptr, nullptr);
  pending.End(absl::UnknownError("no disk"));
  const PendingStorages::Operand operand = {storage, false};
  pending.Await({&operand, 1}, [&](size_t, const absl::Status& why) {
    Arm(*storage, std::string(why.message()));
  });
  EXPECT_ANY_THROW(static_cast<void>(view.sum()));
  const auto tensors = [&] { return std::vector<at::Tensor>{tensor}; };
  EXPECT_TRUE(RestoreRefused(pending, tensors).ok());
  EXPECT_EQ(view.sum().item<float>(), 4);
  EXPECT_EQ(tensor.sum().item<float>(), 4);
}

}  // namespace
}  // namespace terrace
