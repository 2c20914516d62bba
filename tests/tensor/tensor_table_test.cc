#include "runtime/tensor/tensor_table.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TensorSpec Spec(const std::string& name) {
  TensorSpec spec;
  spec.name = name;
  spec.size_bytes = 100;
  return spec;
}

TEST(TensorTable, IdsCountFromZeroAndFindTheirTensors) {
  TensorTable table;
  for (int i = 0; i < 1000; ++i) {
    const auto added = table.Add(Spec(std::to_string(i)));
    ASSERT_TRUE(added.ok());
    EXPECT_EQ((*added)->id.value, i);
    EXPECT_EQ(table.Find(TensorId{i}), nullptr);  // not admitted yet
    table.Admit(**added);
  }
  for (int i = 0; i < 1000; ++i) {
    Tensor* const entry = table.Find(TensorId{i});
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->spec.name, std::to_string(i));
    EXPECT_EQ(entry, table.all().at(i).get());
  }
  EXPECT_EQ(table.Find(TensorId{-1}), nullptr);
  EXPECT_EQ(table.Find(TensorId{1000}), nullptr);
  EXPECT_EQ(table.Find(TensorId{}), nullptr);
}

TEST(TensorTable, ANameIsTakenOnce) {
  TensorTable table;
  ASSERT_TRUE(table.Add(Spec("a")).ok());
  const auto again = table.Add(Spec("a"));
  EXPECT_TRUE(absl::IsAlreadyExists(again.status()));
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("'a'"));
  EXPECT_EQ(table.all().size(), 1u);
}

TEST(TensorTable, WhatIsTakenBackLeavesItsNameAndId) {
  TensorTable table;
  ASSERT_TRUE(table.Add(Spec("a")).ok());
  table.TakeBack(**table.Add(Spec("b")));
  EXPECT_EQ(table.Find(TensorId{1}), nullptr);
  const auto again = table.Add(Spec("b"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->id, TensorId{1});
}

TEST(TensorTable, TensorsStayWhereTheyAre) {
  TensorTable table;
  Tensor* const first = *table.Add(Spec("first"));
  table.Admit(*first);
  for (int i = 0; i < 1000; ++i) table.Add(Spec(std::to_string(i))).value();
  EXPECT_EQ(table.Find(TensorId{0}), first);
}

TEST(TensorTable, ATensorEndsInThreeParts) {
  TensorTable table;
  Tensor& tensor = **table.Add(Spec("a"));
  table.Admit(tensor);
  table.Retire(tensor);
  EXPECT_EQ(table.Find(tensor.id), nullptr);
  EXPECT_TRUE(absl::IsAlreadyExists(table.Add(Spec("a")).status()));
  table.FreeName(tensor);
  EXPECT_EQ((*table.Add(Spec("a")))->id, TensorId{1});
  table.Erase(tensor);
  EXPECT_EQ(table.all().count(0), 0u);
  EXPECT_EQ(table.Find(TensorId{0}), nullptr);
}

}  // namespace
}  // namespace terrace
