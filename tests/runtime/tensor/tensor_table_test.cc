#include "runtime/tensor/tensor_table.h"

#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_reserver.h"

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

// A life of two tensors, against what each step means by itself.
TEST(TensorTable, TheSumsAreThoseOfAWalk) {
  FakeReserver memory(kDramTier);
  FakeReserver disk({TierKind::kDisk, 0});
  TensorTable table;
  Tensor& a = **table.Add(Spec("a"));
  Tensor& b = **table.Add(Spec("b"));
  table.Admit(a);
  table.Admit(b);
  const auto expect = [&](TierId tier, int64_t tensors, int64_t pinned,
                          int64_t dirty, int64_t clean) {
    const TierFill fill = table.FillOf(tier);
    EXPECT_EQ(fill.tensors, tensors);
    EXPECT_EQ(fill.pinned_bytes, pinned);
    EXPECT_EQ(fill.dirty_bytes, dirty);
    EXPECT_EQ(fill.clean_bytes, clean);
    EXPECT_TRUE(table.CheckInvariants().ok()) << table.CheckInvariants();
  };
  expect(kDramTier, 0, 0, 0, 0);
  a.GivePlace(disk.Give(0, 10));
  b.GivePlace(disk.Give(10, 100));
  expect(disk.id(), 2, 0, 0, 110);
  a.BeginOverwrite(memory.Give(0, 20));
  a.Hold(kDramTier, Access::kOverwrite);
  b.BeginOverwrite(memory.Give(20, 200));
  b.Hold(kDramTier, Access::kOverwrite);
  expect(kDramTier, 2, 220, 0, 0);
  for (Tensor* const each : {&a, &b}) {
    each->Publish(kDramTier);
    each->Unhold(kDramTier, Access::kOverwrite);
  }
  expect(kDramTier, 2, 0, 220, 0);
  expect(disk.id(), 2, 0, 110, 0);  // older than what is in memory
  a.BeginDrain(1);
  a.BeginMove(/*in_place=*/false, 2);
  a.Drained(disk.Give(200, 10), 1);
  expect(kDramTier, 2, 0, 200, 20);
  expect(disk.id(), 2, 0, 100, 10);
  a.Hold(kDramTier, Access::kRead);
  a.Hold(kDramTier, Access::kRead);
  expect(kDramTier, 2, 20, 200, 0);
  a.Unhold(kDramTier, Access::kRead);
  expect(kDramTier, 2, 20, 200, 0);
  a.Unhold(kDramTier, Access::kRead);
  a.Drop(kDramTier);
  expect(kDramTier, 1, 0, 200, 0);
  a.BeginFill(kDramTier, memory.Give(0, 20), 3);
  expect(kDramTier, 2, 0, 200, 20);
  a.FillFailed(kDramTier);
  expect(kDramTier, 1, 0, 200, 0);
  b.Lose(absl::DataLossError("gone"));
  b.Drop(kDramTier);
  expect(kDramTier, 0, 0, 0, 0);
  expect(disk.id(), 2, 0, 0, 110);
  table.Retire(b);
  table.FreeName(b);
  table.Erase(b);
  expect(disk.id(), 1, 0, 0, 10);
  table.TakeBack(a);
  expect(disk.id(), 0, 0, 0, 0);
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
