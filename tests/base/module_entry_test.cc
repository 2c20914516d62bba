#include "base/module_entry.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string MessageOf(const absl::StatusOr<void*>& entry) {
  return std::string(entry.status().message());
}

TEST(ModuleEntry, IsTheFunctionOfThatName) {
  const auto entry = ModuleEntry("libc.so.6", "abs");
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ(reinterpret_cast<int (*)(int)>(*entry)(-3), 3);
}

TEST(ModuleEntry, WhatLacksIsUnavailableInOneLine) {
  const auto file = ModuleEntry("/nowhere/module.so", "cbrt");
  EXPECT_TRUE(absl::IsUnavailable(file.status()));
  EXPECT_THAT(MessageOf(file), HasSubstr("/nowhere/module.so: "));
  EXPECT_THAT(MessageOf(file), Not(HasSubstr("\n")));
  const auto entry = ModuleEntry("libm.so.6", "no_such_entry");
  EXPECT_TRUE(absl::IsUnavailable(entry.status()));
  EXPECT_EQ(MessageOf(entry), "libm.so.6 has no no_such_entry");
}

TEST(ModuleEntry, WhatIsNotBesideIsWhereTheLoaderLooks) {
  const void* const code = reinterpret_cast<const void*>(&MessageOf);
  EXPECT_TRUE(ModuleEntryBeside(code, "libm.so.6", "cbrt").ok());
  const auto none = ModuleEntryBeside(code, "no_module.so", "cbrt");
  EXPECT_TRUE(absl::IsUnavailable(none.status()));
  EXPECT_THAT(MessageOf(none), HasSubstr("no_module.so: "));
  EXPECT_THAT(MessageOf(none), HasSubstr("; and beside: "));
}

}  // namespace
}  // namespace terrace
