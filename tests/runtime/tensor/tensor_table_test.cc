#include "runtime/tensor/tensor_table.h"

#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

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

// Of all that have not been erased, in the order in which they are visited.
std::vector<const Tensor*> AllOf(const TensorTable& table) {
  std::vector<const Tensor*> all;
  table.ForEach([&](const Tensor& tensor) { all.push_back(&tensor); });
  return all;
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
  const std::vector<const Tensor*> all = AllOf(table);
  ASSERT_EQ(all.size(), 1000u);
  for (int i = 0; i < 1000; ++i) {
    Tensor* const entry = table.Find(TensorId{i});
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->spec.name, std::to_string(i));
    EXPECT_EQ(entry, all[static_cast<size_t>(i)]);
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
  EXPECT_EQ(AllOf(table).size(), 1u);
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
  EXPECT_EQ(AllOf(table).size(), 1u);
  EXPECT_EQ(table.Find(TensorId{0}), nullptr);
}

// Most end soon, as those of a step do, and some stay.
TEST(TensorTable, WhatLivesIsFoundWhateverHasEnded) {
  std::mt19937 random(7);
  TensorTable table;
  std::map<int64_t, Tensor*> living;
  for (int i = 0; i < 20'000; ++i) {
    Tensor* const added = *table.Add(Spec(std::to_string(i)));
    ASSERT_EQ(added->id.value, i);
    table.Admit(*added);
    living.emplace(i, added);
    while (living.size() > 300 || (!living.empty() && random() % 3 == 0)) {
      const auto skipped = static_cast<ptrdiff_t>(random() % living.size());
      const auto ended = std::next(living.begin(), skipped);
      table.Retire(*ended->second);
      table.FreeName(*ended->second);
      table.Erase(*ended->second);
      ASSERT_EQ(table.Find(TensorId{ended->first}), nullptr);
      living.erase(ended);
    }
    if (i % 1000 != 0) continue;
    for (const auto& [id, tensor] : living) {
      ASSERT_EQ(table.Find(TensorId{id}), tensor);
    }
    std::vector<const Tensor*> expected;
    for (const auto& [id, tensor] : living) expected.push_back(tensor);
    ASSERT_EQ(AllOf(table), expected);
  }
}

}  // namespace
}  // namespace terrace
