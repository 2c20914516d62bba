#include "kernels/instruction_set.h"

#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/instruction_sets.h"

namespace terrace {
namespace {

TEST(InstructionSetTest, TheBestIsChosenAndScalarIsAlwaysThere) {
  const std::vector<std::string> names = AvailableInstructionSets();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(InstructionSetName(), names.front());
  EXPECT_EQ(names.back(), "scalar");
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(),
            names.size());
}

TEST(InstructionSetTest, WhatTheProcessorHasIsAvailable) {
#if defined(__x86_64__)
  const std::vector<std::string> names = AvailableInstructionSets();
  EXPECT_EQ(testing::Value(names, testing::Contains("AVX2")),
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(testing::Value(names, testing::Contains("AVX-512")),
            __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vl"));
#else
  GTEST_SKIP() << "not an x86 processor";
#endif
}

TEST(InstructionSetTest, EachAvailableSetCanBeForced) {
  for (const std::string& name : AvailableInstructionSets()) {
    const ScopedInstructionSet forced(name);
    EXPECT_EQ(InstructionSetName(), name);
  }
  EXPECT_EQ(InstructionSetName(), AvailableInstructionSets().front());
}

TEST(InstructionSetTest, AnUnknownSetIsRefusedAndChangesNothing) {
  const std::string before = InstructionSetName();
  const absl::Status status = ForceInstructionSet("AVX-9000");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("AVX-9000"),
                             testing::HasSubstr("scalar")));
  EXPECT_EQ(InstructionSetName(), before);
}

}  // namespace
}  // namespace terrace
