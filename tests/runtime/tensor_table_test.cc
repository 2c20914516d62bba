#include "runtime/residency.h"

#include <functional>
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

TEST(ResidencyTable, IdsCountFromZeroAndFindTheirEntries) {
  ResidencyTable table;
  for (int i = 0; i < 1000; ++i) {
    const auto added = table.Add(Spec(std::to_string(i)));
    ASSERT_TRUE(added.ok());
    EXPECT_EQ((*added)->id.value, i);
  }
  for (int i = 0; i < 1000; ++i) {
    TensorEntry* const entry = table.Find(TensorId{i});
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->spec.name, std::to_string(i));
    EXPECT_EQ(entry, table.entries()[static_cast<size_t>(i)].get());
  }
  EXPECT_EQ(table.Find(TensorId{-1}), nullptr);
  EXPECT_EQ(table.Find(TensorId{1000}), nullptr);
  EXPECT_EQ(table.Find(TensorId{}), nullptr);
}

TEST(ResidencyTable, ANameIsTakenOnce) {
  ResidencyTable table;
  ASSERT_TRUE(table.Add(Spec("a")).ok());
  const auto again = table.Add(Spec("a"));
  EXPECT_TRUE(absl::IsAlreadyExists(again.status()));
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("'a'"));
  EXPECT_EQ(table.entries().size(), 1u);
}

TEST(ResidencyTable, WhatIsTakenBackLeavesItsNameAndId) {
  ResidencyTable table;
  ASSERT_TRUE(table.Add(Spec("a")).ok());
  table.TakeBack(**table.Add(Spec("b")));
  EXPECT_EQ(table.Find(TensorId{1}), nullptr);
  const auto again = table.Add(Spec("b"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->id, TensorId{1});
}

TEST(ResidencyTable, EntriesStayWhereTheyAre) {
  ResidencyTable table;
  TensorEntry* const first = *table.Add(Spec("first"));
  for (int i = 0; i < 1000; ++i) table.Add(Spec(std::to_string(i))).value();
  EXPECT_EQ(table.Find(TensorId{0}), first);
}

// A valid host copy of generation `generation`, the home's is `home`.
TensorEntry Entry(uint64_t generation, uint64_t home) {
  TensorEntry entry;
  entry.spec = Spec("the entry");
  entry.generation = generation;
  entry.home_generation = home;
  entry.host = HostState::kValid;
  entry.extent = {0, 8192};
  return entry;
}

TEST(TensorEntry, IsDirtyAboveAnOlderHome) {
  EXPECT_FALSE(Entry(0, 0).dirty());
  EXPECT_TRUE(Entry(1, 0).dirty());
  EXPECT_TRUE(Entry(2, 1).dirty());
  EXPECT_FALSE(Entry(2, 2).dirty());
  TensorEntry entry = Entry(2, 1);
  entry.write_pinned = true;  // not yet what it will be
  EXPECT_FALSE(entry.dirty());
  entry = Entry(2, 1);
  entry.host = HostState::kLoading;
  EXPECT_FALSE(entry.dirty());
}

TEST(TensorEntry, IsIdleWhenNobodyUsesOrMovesIt) {
  EXPECT_TRUE(Entry(1, 0).idle());
  const std::function<void(TensorEntry&)> busy[] = {
      [](TensorEntry& entry) { entry.host = HostState::kAbsent; },
      [](TensorEntry& entry) { entry.host = HostState::kLoading; },
      [](TensorEntry& entry) { entry.host = HostState::kVerifying; },
      [](TensorEntry& entry) { entry.pins = 1; },
      [](TensorEntry& entry) { entry.kept = true; },
      [](TensorEntry& entry) { entry.write = WriteState::kHashing; },
      [](TensorEntry& entry) { entry.write = WriteState::kWriting; },
      [](TensorEntry& entry) { entry.quarantined = true; },
  };
  for (const auto& change : busy) {
    TensorEntry entry = Entry(1, 0);
    change(entry);
    EXPECT_FALSE(entry.idle());
  }
}

TEST(TensorEntry, MovesToAnyOtherPlaceThanItsHome) {
  TensorEntry entry = Entry(2, 1);
  entry.path = 0;
  entry.home = {4096, 8192};
  EXPECT_FALSE(entry.moves());
  entry.target_path = 0;
  entry.target = entry.home;
  EXPECT_FALSE(entry.moves());
  entry.target.offset = 0;
  EXPECT_TRUE(entry.moves());
  entry.target = entry.home;
  entry.target_path = 1;
  EXPECT_TRUE(entry.moves());
}

struct Breach {
  const char* rule;  // in the message
  std::function<void(TensorEntry&)> commit;
};

class Invariants : public testing::TestWithParam<Breach> {};

TEST_P(Invariants, ABreachIsFoundAndNamesTheTensor) {
  ResidencyTable table;
  for (const char* name : {"before", "the breach", "after"}) {
    TensorEntry& entry = **table.Add(Spec(name));
    const TensorId id = entry.id;
    const TensorSpec spec = entry.spec;
    entry = Entry(2, 1);
    entry.id = id;
    entry.spec = spec;
  }
  ASSERT_TRUE(table.CheckInvariants().ok()) << table.CheckInvariants();
  GetParam().commit(*table.Find(TensorId{1}));
  const absl::Status status = table.CheckInvariants();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("'the breach'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().rule));
}

void Absent(TensorEntry& entry) {
  entry.host = HostState::kAbsent;
  entry.extent = {};
}

INSTANTIATE_TEST_SUITE_P(
    Rules, Invariants,
    testing::Values(
        Breach{"no valid copy", Absent},
        Breach{"write pin is not alone",
               [](TensorEntry& entry) {
                 entry.write_pinned = true;
                 entry.pins = 2;
               }},
        Breach{"write pin is not alone",
               [](TensorEntry& entry) { entry.write_pinned = true; }},
        Breach{"pinned without a host copy",
               [](TensorEntry& entry) {
                 entry.home_generation = entry.generation;
                 Absent(entry);
                 entry.pins = 1;
               }},
        Breach{"pinned without a valid copy",
               [](TensorEntry& entry) {
                 entry.home_generation = entry.generation;
                 entry.host = HostState::kLoading;
                 entry.pins = 1;
                 entry.pinned_by = {0};
               }},
        Breach{"more queues than pins",
               [](TensorEntry& entry) { entry.pinned_by = {0}; }},
        Breach{"out of a write pin",
               [](TensorEntry& entry) {
                 entry.write_pinned = true;
                 entry.pins = 1;
                 entry.write = WriteState::kHashing;
               }},
        Breach{"out of a write pin",
               [](TensorEntry& entry) {
                 entry.write_pinned = true;
                 entry.pins = 1;
                 entry.write = WriteState::kWriting;
               }},
        Breach{"two transfers",
               [](TensorEntry& entry) {
                 entry.home_generation = entry.generation;
                 entry.host = HostState::kLoading;
                 entry.write = WriteState::kWriting;
               }},
        Breach{"above a current one",
               [](TensorEntry& entry) { entry.home_generation = 3; }},
        Breach{"goes nowhere",
               [](TensorEntry& entry) { entry.write = WriteState::kWriting; }},
        Breach{"a target of no transfer",
               [](TensorEntry& entry) { entry.target_path = 1; }},
        Breach{"an extent without a copy",
               [](TensorEntry& entry) {
                 entry.home_generation = entry.generation;
                 entry.host = HostState::kAbsent;
               }},
        Breach{"a copy without an extent",
               [](TensorEntry& entry) { entry.extent = {}; }}));

TEST(ResidencyTable, ADataLossExcusesAMissingCopy) {
  ResidencyTable table;
  TensorEntry& entry = **table.Add(Spec("a"));
  entry.generation = 2;
  EXPECT_FALSE(table.CheckInvariants().ok());
  entry.loss = absl::DataLossError("gone");
  EXPECT_TRUE(table.CheckInvariants().ok());
}

}  // namespace
}  // namespace terrace
