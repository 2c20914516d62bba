#include "runtime/tensor/tensor_line.h"

#include "gtest/gtest.h"

namespace terrace {
namespace {

TEST(TensorLine, KeepsItsOrderAndItsBytes) {
  TensorLine line;
  line.Add({.value = 7}, 30);
  line.Add({.value = 3}, 20);
  line.Add({.value = 5}, 10);
  EXPECT_EQ(line.bytes(), 60);
  EXPECT_EQ(line.first().value, 7);
  EXPECT_EQ(line.first_bytes(), 30);
  EXPECT_EQ(line.last().value, 5);
  line.Add({.value = 7}, 40);  // goes to the end
  EXPECT_EQ(line.first().value, 3);
  EXPECT_EQ(line.last().value, 7);
  EXPECT_EQ(line.bytes(), 70);
  line.Erase({.value = 3});
  line.Erase({.value = 3});
  EXPECT_FALSE(line.contains({.value = 3}));
  EXPECT_EQ(line.first().value, 5);
  EXPECT_EQ(line.bytes(), 50);
  line.Clear();
  EXPECT_TRUE(line.empty());
  EXPECT_EQ(line.bytes(), 0);
  line.Add({.value = 5}, 10);
  EXPECT_EQ(line.last().value, 5);
}

}  // namespace
}  // namespace terrace
