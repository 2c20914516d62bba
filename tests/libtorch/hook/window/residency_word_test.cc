#include "libtorch/hook/window/residency_word.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr Residency kAll[] = {Residency::kResident, Residency::kEvicting,
                              Residency::kCold, Residency::kLoading,
                              Residency::kFailed};

TEST(ResidencyWord, EachBeginningIsOfCertainStates) {
  for (const Residency state : kAll) {
    SCOPED_TRACE(static_cast<int>(state));
    const bool owned =
        state == Residency::kEvicting || state == Residency::kLoading;
    ResidencyWord evict(state);
    EXPECT_EQ(evict.BeginEvict(), state == Residency::kResident);
    ResidencyWord load(state);
    EXPECT_EQ(load.BeginLoad(), state == Residency::kCold);
    ResidencyWord retry(state);
    EXPECT_EQ(retry.BeginRetry(), state == Residency::kFailed);
    ResidencyWord remove(state);
    EXPECT_EQ(remove.BeginRemove(), !owned);
  }
}

TEST(ResidencyWord, WhatBeganIsOneThreadsUntilItsEnd) {
  ResidencyWord word(Residency::kResident);
  ASSERT_TRUE(word.BeginEvict());
  EXPECT_EQ(word.state(), Residency::kEvicting);
  EXPECT_FALSE(word.BeginEvict());
  EXPECT_FALSE(word.BeginLoad());
  EXPECT_FALSE(word.BeginRemove());
  word.End(Residency::kCold);
  EXPECT_EQ(word.Await(), Residency::kCold);
  ASSERT_TRUE(word.BeginLoad());
  EXPECT_EQ(word.state(), Residency::kLoading);
  EXPECT_FALSE(word.BeginLoad());
  word.End(Residency::kFailed);
  EXPECT_EQ(word.Await(), Residency::kFailed);
}

TEST(ResidencyWord, TheLastUseOfWhatIsWantedTakesItAway) {
  ResidencyWord word(Residency::kResident);
  word.Pin();
  word.Pin();
  EXPECT_FALSE(word.Want());
  EXPECT_FALSE(word.Unpin());
  EXPECT_EQ(word.state(), Residency::kResident);
  EXPECT_TRUE(word.Unpin());
  EXPECT_FALSE(word.pinned());
  EXPECT_EQ(word.state(), Residency::kEvicting);
  word.EndWant();
  word.End(Residency::kCold);
  ASSERT_TRUE(word.BeginLoad());
  word.Pin();
  word.End(Residency::kResident);
  EXPECT_FALSE(word.Unpin());  // it is wanted no more
  EXPECT_TRUE(word.Want());    // nothing uses it
  EXPECT_EQ(word.state(), Residency::kEvicting);
}

TEST(ResidencyWord, WhatIsWantedAndNotHereStaysAsItIs) {
  for (const Residency state : {Residency::kFailed, Residency::kCold}) {
    ResidencyWord word(state);
    word.Pin();
    EXPECT_FALSE(word.Want());
    EXPECT_FALSE(word.Unpin());
    EXPECT_EQ(word.state(), state);
    EXPECT_FALSE(word.pinned());
  }
  ResidencyWord entering(Residency::kResident);
  entering.Enter();
  EXPECT_FALSE(entering.Want());
  entering.SetLife(Life::kManaged, /*is_pinned=*/true);
  EXPECT_TRUE(entering.Unpin());
}

TEST(ResidencyWord, APinKeepsEvictionAway) {
  ResidencyWord word(Residency::kResident);
  EXPECT_EQ(word.Pin(), Residency::kResident);
  EXPECT_EQ(word.Pin(), Residency::kResident);
  EXPECT_FALSE(word.Unpin());
  EXPECT_TRUE(word.pinned());
  EXPECT_FALSE(word.BeginEvict());
  EXPECT_FALSE(word.BeginRemove());
  EXPECT_FALSE(word.Unpin());
  EXPECT_FALSE(word.pinned());
  EXPECT_TRUE(word.BeginEvict());
}

TEST(ResidencyWord, PinsThatComeDuringAnEvictionSeeItAndStay) {
  ResidencyWord word(Residency::kResident);
  ASSERT_TRUE(word.BeginEvict());
  EXPECT_EQ(word.Pin(), Residency::kEvicting);
  word.End(Residency::kCold);
  EXPECT_TRUE(word.pinned());
  EXPECT_TRUE(word.BeginLoad());  // with its pin
  word.End(Residency::kResident);
  EXPECT_FALSE(word.BeginEvict());
  EXPECT_FALSE(word.Unpin());
  EXPECT_TRUE(word.BeginEvict());
}

// The bytes are a plain integer: what guards it is the word alone.
TEST(ResidencyWord, GuardsBytesAmongThreads) {
  ResidencyWord word(Residency::kResident);
  int64_t value = 0;  // -1: not here
  int64_t below = 0;
  std::vector<std::thread> threads;
  for (int reader = 0; reader < 2; ++reader) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5'000; ++i) {
        if (word.Pin() != Residency::kResident) {
          while (word.Await() != Residency::kResident) {
            if (!word.BeginLoad()) continue;
            value = below;
            word.End(Residency::kResident);
          }
        }
        EXPECT_GE(value, 0);
        EXPECT_FALSE(word.Unpin());
      }
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < 5'000; ++i) {
      if (!word.BeginEvict()) continue;
      below = value + 1;  // a write by the only one that has it
      value = -1;
      word.End(Residency::kCold);
    }
  });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace terrace
