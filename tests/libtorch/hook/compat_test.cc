// Both kinds of storages, whatever LibTorch is there.
#include "libtorch/hook/compat.h"

#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace terrace {
namespace {

// As before 2.12.
struct OldStorage {
  std::optional<std::string> message;
  void release_data_and_set_meta_custom_data_ptr_error_msg_(
      std::optional<std::string> text) {
    message = std::move(text);
  }
};

struct NewStorage : OldStorage {
  void clear_data_ptr_access_error_msg_() { message.reset(); }
};

TEST(Compat, AMessageStaysOnOldStoragesAndLeavesNewOnes) {
  OldStorage before;
  NewStorage later;
  Arm(before, "away");
  Arm(later, "away");
  EXPECT_EQ(before.message, "away");
  EXPECT_EQ(later.message, "away");
  EXPECT_FALSE(Disarm(before));
  EXPECT_TRUE(Disarm(later));
  EXPECT_EQ(before.message, "away");
  EXPECT_EQ(later.message, std::nullopt);
  static_assert(!kCanDisarm<OldStorage> && kCanDisarm<NewStorage>);
}

}  // namespace
}  // namespace terrace
