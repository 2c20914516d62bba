// The offline rule against every choice there is, and against itself done
// slowly, on small traces.
#include "bench/offline/farthest_use.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace terrace::bench {
namespace {

using Names = std::set<std::string>;

OfflineTraffic Of(const std::string& trace, int64_t budget, int steps = 1,
                  int warm = 0) {
  const auto parsed = ParseTrace(trace);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return FarthestNextUse(*parsed, budget, steps, warm);
}

TEST(FarthestUse, WhatFitsIsReadOnce) {
  EXPECT_EQ(Of("a:10 b:20\na:10\nb:20\n", 30).bytes_read, 30);
}

TEST(FarthestUse, WhatIsUsedLastLeaves) {
  // c takes the room of b, which is used after a.
  EXPECT_EQ(Of("a:10\nb:10\nc:10\na:10\nb:10", 20).bytes_read, 40);
}

TEST(FarthestUse, OperandsStayTogetherAndMayExceedTheBudget) {
  const OfflineTraffic traffic = Of("a:10 b:10 c:10\na:10", 20);
  EXPECT_EQ(traffic.beyond_bytes, 10);
  EXPECT_EQ(traffic.bytes_read, 30);
}

TEST(FarthestUse, WhatWasWrittenIsWrittenWhenItLeavesUnlessItEnds) {
  EXPECT_EQ(Of("a:10w\nb:10\na:10", 10),
            (OfflineTraffic{.bytes_read = 30, .bytes_written = 10}));
  EXPECT_EQ(Of("a:10n\na:10e\nb:10", 10),
            (OfflineTraffic{.bytes_read = 10, .bytes_written = 0}));
}

TEST(FarthestUse, WhatIsDroppedIsNoUseAndIsNotReadForIt) {
  // a is written as b needs its room, and is not read again for its drop.
  EXPECT_EQ(Of("a:10n\nb:10\na:10d", 10),
            (OfflineTraffic{.bytes_read = 10, .bytes_written = 10}));
  // It leaves before b, although its drop comes before the next use of b.
  EXPECT_EQ(Of("b:10\na:10n\nc:10\na:10d\nb:10", 20),
            (OfflineTraffic{.bytes_read = 20, .bytes_written = 10}));
  // Where it is in memory nothing is written for it, and its room is free.
  EXPECT_EQ(Of("a:10n\na:10d\nb:10\na:10n\na:10d\nb:10", 20),
            (OfflineTraffic{.bytes_read = 10, .bytes_written = 0}));
  EXPECT_EQ(Of("b:10w\na:10d", 10, /*steps=*/3),
            (OfflineTraffic{.bytes_read = 10, .bytes_written = 0}));
}

TEST(FarthestUse, StepsFollowOneAnotherAndTheFirstAreNotCounted) {
  // Of three in a row with room for two, one stays from step to step.
  EXPECT_EQ(Of("a:1\nb:1\nc:1", 2, /*steps=*/52, /*warm=*/2).bytes_read, 75);
}

TEST(FarthestUse, WrongTracesAreRefusedByLine) {
  EXPECT_EQ(ParseTrace("a:10\nb").status(),
            absl::InvalidArgumentError("line 2: 'b' is no name:bytes"));
  EXPECT_EQ(ParseTrace("a:10\n\na:11w").status(),
            absl::InvalidArgumentError("line 3: 'a' of 11 bytes had 10"));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseTrace("a:0").status()));
}

std::vector<Operation> Draw(std::mt19937_64& random, int operations,
                            int tensors, bool equal) {
  std::vector<Operation> trace;
  for (int i = 0; i < operations; ++i) {
    Names names;
    for (uint64_t n = 0; n <= random() % 2; ++n) {
      names.insert(std::string(
          1,
          static_cast<char>('a' + random() % static_cast<uint64_t>(tensors))));
    }
    Operation operation;
    for (const std::string& name : names) {
      OperandUse use{.tensor = name, .bytes = equal ? 1 : 1 + name[0] % 5};
      if (!equal) use.writes = random() % 3 == 0;
      operation.push_back(use);
    }
    trace.push_back(operation);
  }
  return trace;
}

// The fewest reads over all choices of what stays, of tensors of one byte.
int64_t Fewest(const std::vector<Operation>& trace, size_t at,
               const Names& memory, size_t budget,
               std::map<std::pair<size_t, Names>, int64_t>* known) {
  if (at == trace.size()) return 0;
  const auto [found, is_new] = known->try_emplace({at, memory}, 0);
  if (!is_new) return found->second;
  Names operands;
  int64_t reads = 0;
  for (const OperandUse& use : trace[at]) {
    operands.insert(use.tensor);
    if (!memory.contains(use.tensor)) ++reads;
  }
  std::vector<std::string> others;
  for (const std::string& name : memory) {
    if (!operands.contains(name)) others.push_back(name);
  }
  int64_t fewest = INT64_MAX;
  for (uint64_t kept = 0; kept < uint64_t{1} << others.size(); ++kept) {
    Names next = operands;
    for (size_t i = 0; i < others.size(); ++i) {
      if ((kept >> i & 1) != 0) next.insert(others[i]);
    }
    if (next.size() > budget) continue;
    fewest = std::min(fewest, Fewest(trace, at + 1, next, budget, known));
  }
  (*known)[{at, memory}] = reads + fewest;
  return reads + fewest;
}

TEST(FarthestUse, NoChoiceReadsLessOfTensorsOfOneSize) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    // One step, and then nothing: what is used never again leaves first.
    const std::vector<Operation> trace = Draw(random, 9, 5, /*equal=*/true);
    const size_t budget = 2 + random() % 3;
    std::map<std::pair<size_t, Names>, int64_t> known;
    const int64_t fewest = Fewest(trace, 0, {}, budget, &known);
    EXPECT_EQ(FarthestNextUse(trace, static_cast<int64_t>(budget)).bytes_read,
              fewest)
        << "round " << round;
  }
}

// The rule as its sentence says it, by a look at the whole trace each time.
OfflineTraffic Slowly(const std::vector<Operation>& trace, int64_t budget) {
  OfflineTraffic traffic;
  std::map<std::string, bool> dirty;  // of what is in memory
  std::map<std::string, int64_t> sizes;
  const auto used = [&] {
    int64_t bytes = 0;
    for (const auto& [name, is_dirty] : dirty) bytes += sizes[name];
    return bytes;
  };
  const auto next_use = [&](const std::string& name, size_t from) {
    for (size_t i = from; i < 2 * trace.size(); ++i) {
      for (const OperandUse& use : trace[i % trace.size()]) {
        if (use.tensor == name) return i;
      }
    }
    return 2 * trace.size();
  };
  for (size_t at = 0; at < trace.size(); ++at) {
    Names operands;
    for (const OperandUse& use : trace[at]) {
      operands.insert(use.tensor);
      sizes[use.tensor] = use.bytes;
    }
    const auto make_room = [&](int64_t bytes, const Names& stay) {
      while (used() + bytes > budget) {
        std::string victim;
        size_t farthest = 0;
        for (const auto& [name, is_dirty] : dirty) {
          if (stay.contains(name)) continue;
          const size_t next = next_use(name, at + (stay.empty() ? 1 : 0));
          if (victim.empty() || next >= farthest) {
            victim = name;
            farthest = next;
          }
        }
        if (victim.empty()) return;
        if (dirty[victim]) traffic.bytes_written += sizes[victim];
        dirty.erase(victim);
      }
    };
    for (const OperandUse& use : trace[at]) {
      if (dirty.contains(use.tensor)) continue;
      make_room(use.bytes, operands);
      dirty[use.tensor] = false;
      traffic.bytes_read += use.bytes;
    }
    traffic.beyond_bytes = std::max(traffic.beyond_bytes, used() - budget);
    for (const OperandUse& use : trace[at]) dirty[use.tensor] |= use.writes;
    make_room(0, {});
  }
  return traffic;
}

TEST(FarthestUse, WithSizesAndWritesItIsTheRuleOfItsSentence) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 500; ++round) {
    const std::vector<Operation> trace = Draw(random, 12, 6, /*equal=*/false);
    const auto budget = static_cast<int64_t>(5 + random() % 8);
    EXPECT_EQ(FarthestNextUse(trace, budget), Slowly(trace, budget))
        << "round " << round;
  }
}

}  // namespace
}  // namespace terrace::bench
