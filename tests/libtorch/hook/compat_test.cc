// What a message does, with whichever LibTorch is there.
#include "libtorch/hook/compat.h"

#include <ATen/ATen.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(Compat, AMessageIsThrownUntilItIsTakenOff) {
  const at::Tensor tensor = at::arange(4);
  const at::Tensor view = tensor.view({2, 2});
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const void* const data = storage.data();
  for (int i = 0; i < 2; ++i) {
    Arm(storage, "away " + std::to_string(i));
    for (const bool is_written : {false, true}) {
      try {
        is_written ? storage.mutable_data_ptr() : storage.data_ptr();
        ADD_FAILURE() << "no message";
      } catch (const std::exception& error) {
        EXPECT_THAT(error.what(), HasSubstr("away " + std::to_string(i)));
      }
    }
    EXPECT_ANY_THROW(static_cast<void>(view.sum()));
    Disarm(storage);
    EXPECT_EQ(storage.data(), data);
    EXPECT_EQ(storage.mutable_data(), data);
    EXPECT_EQ(view.add_(1).sum().item<int64_t>(), 6 + 4 * (i + 1));
  }
  Disarm(storage);
  EXPECT_EQ(storage.data(), data);
}

}  // namespace
}  // namespace terrace
