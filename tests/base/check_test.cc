#include "base/check.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(CheckTest, PassesAndEvaluatesOnce) {
  int evaluated = 0;
  TERRACE_CHECK(++evaluated == 1);
  EXPECT_EQ(evaluated, 1);
}

TEST(CheckDeathTest, NamesTheConditionAndThePlace) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const int used = 5, capacity = 4;
  EXPECT_DEATH(TERRACE_CHECK(used <= capacity),
               "internal error at .*check_test\\.cc:[0-9]+: used <= capacity");
}

TEST(CheckTest, IsOneStatement) {
  bool otherwise = false;
  if (otherwise)
    TERRACE_CHECK(false);
  else
    otherwise = true;
  EXPECT_TRUE(otherwise);
}

}  // namespace
}  // namespace terrace
