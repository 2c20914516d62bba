// Options::tiers: what a runtime of named tiers keeps where.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/temporary_directory.h"
#include "tiers/memory/topology.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kTensor = 60 << 10;  // with its header 64 KiB
constexpr int64_t kPlace = 64 << 10;

class TiersContract : public testing::Test {
 protected:
  static Time Soon() { return absl::Now() + absl::Seconds(30); }

  absl::StatusOr<std::unique_ptr<Runtime>> Create(
      const std::vector<std::string>& tiers) {
    Options options;
    options.huge_pages = HugePages::kOff;
    options.threads = 1;
    for (const std::string& text : tiers) {
      const absl::StatusOr<TierSpec> tier = ParseTier(text);
      if (!tier.ok()) return tier.status();
      options.tiers.push_back(*tier);
    }
    return Runtime::Create(options);
  }
  // As many as there is room for; `refused`: what the next one was told.
  static std::vector<TensorId> RegisterAll(Runtime& runtime,
                                           absl::Status* refused) {
    std::vector<TensorId> tensors;
    while (true) {
      const absl::StatusOr<TensorId> id =
          runtime.Register({.name = absl::StrCat("tensor ", tensors.size()),
                            .size_bytes = kTensor});
      if (!id.ok()) {
        *refused = id.status();
        return tensors;
      }
      tensors.push_back(*id);
    }
  }

  static std::byte ByteOf(TensorId tensor, int64_t i) {
    return static_cast<std::byte>(tensor.value * 31 + i * 7 + (i >> 9));
  }
  static void Write(Runtime& runtime, TensorId tensor) {
    absl::StatusOr<Pin> pin =
        runtime.Acquire(tensor, Access::kOverwrite, Soon());
    ASSERT_TRUE(pin.ok()) << pin.status();
    for (int64_t i = 0; i < kTensor; ++i) {
      pin->data()[static_cast<size_t>(i)] = ByteOf(tensor, i);
    }
  }
  static bool Holds(Runtime& runtime, TensorId tensor) {
    const absl::StatusOr<Pin> pin =
        runtime.Acquire(tensor, Access::kRead, Soon());
    EXPECT_TRUE(pin.ok()) << pin.status();
    if (!pin.ok()) return false;
    for (int64_t i = 0; i < kTensor; ++i) {
      if (pin->data()[static_cast<size_t>(i)] != ByteOf(tensor, i)) {
        return false;
      }
    }
    return true;
  }

  const TemporaryDirectory first_;
  const TemporaryDirectory second_;
};

TEST_F(TiersContract, ABudgetOfADiskIsHeldToTheByte) {
  const auto runtime =
      Create({"dram=256KiB", absl::StrCat("nvme:", first_.path(), "=700000")});
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  absl::Status refused;
  const std::vector<TensorId> tensors = RegisterAll(**runtime, &refused);
  EXPECT_EQ(tensors.size(), 700000u / kPlace);  // 10
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(first_.path()), HasSubstr("EDQUOT")));
  for (const TensorId tensor : tensors) Write(**runtime, tensor);
  for (const TensorId tensor : tensors) EXPECT_TRUE(Holds(**runtime, tensor));
  const Stats stats = (*runtime)->GetStats();
  EXPECT_LE(stats.paths()[0].capacity_bytes, 700000);
  EXPECT_EQ(stats.paths()[0].used_bytes, 10 * kPlace);
  EXPECT_LE(stats.host.peak_bytes, 256 << 10);
  ASSERT_EQ(stats.tiers.size(), 2u);
  EXPECT_EQ(stats.tiers[0].name, "dram");
  EXPECT_EQ(stats.tiers[0].budget_bytes, 256 << 10);
  EXPECT_EQ(stats.tiers[0].peak_bytes, stats.host.peak_bytes);
  EXPECT_EQ(stats.tiers[1].name, absl::StrCat("nvme:", first_.path()));
  EXPECT_EQ(stats.tiers[1].kind, TierKind::kDisk);
  EXPECT_EQ(stats.tiers[1].budget_bytes, 700000);
  EXPECT_EQ(stats.tiers[1].used_bytes, 10 * kPlace);
  EXPECT_EQ(stats.tiers[1].peak_bytes, 10 * kPlace);
  ASSERT_EQ(stats.links.size(), 2u);
  EXPECT_EQ(stats.links[0].to, stats.tiers[1].name);
  EXPECT_EQ(stats.links[0].bytes, stats.bytes_written());
  EXPECT_EQ(stats.links[1].from, stats.tiers[1].name);
  EXPECT_EQ(stats.links[1].bytes, stats.bytes_read());
  EXPECT_GT(stats.links[1].bytes, 0);
}

TEST_F(TiersContract, WhatOneDiskHasNoRoomForGoesToTheOther) {
  const auto runtime =
      Create({absl::StrCat("nvme:", first_.path(), "=128KiB"), "dram=256KiB",
              absl::StrCat("nvme:", second_.path(), "=1MiB")});
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  absl::Status refused;
  const std::vector<TensorId> tensors = RegisterAll(**runtime, &refused);
  EXPECT_EQ(tensors.size(), 2u + 16u);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  for (const TensorId tensor : tensors) Write(**runtime, tensor);
  for (const TensorId tensor : tensors) EXPECT_TRUE(Holds(**runtime, tensor));
  const Stats stats = (*runtime)->GetStats();
  EXPECT_EQ(stats.paths()[0].disk.directory, first_.path());
  EXPECT_EQ(stats.paths()[0].used_bytes, 2 * kPlace);
  EXPECT_EQ(stats.paths()[1].used_bytes, 16 * kPlace);
  // What is unregistered makes room again.
  ASSERT_TRUE((*runtime)->Unregister(tensors[0]).ok());
  EXPECT_TRUE(
      (*runtime)->Register({.name = "again", .size_bytes = kTensor}).ok());
}

TEST_F(TiersContract, MemoryAloneKeepsWhatFits) {
  const auto runtime = Create({"dram=256.5KiB"});
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const Stats stats = (*runtime)->GetStats();
  EXPECT_EQ(stats.tiers.at(0).budget_bytes, (256 << 10) + 512);
  EXPECT_EQ(stats.host.budget_bytes, 256 << 10);
  const auto id = (*runtime)->Register({.name = "one", .size_bytes = kTensor});
  ASSERT_TRUE(id.ok()) << id.status();
  Write(**runtime, *id);
  EXPECT_TRUE(Holds(**runtime, *id));
}

TEST_F(TiersContract, ABudgetBeyondTheDiskIsRefused) {
  const auto large = Create(
      {"dram=256KiB", absl::StrCat("nvme:", first_.path(), "=1000000TiB")});
  EXPECT_TRUE(absl::IsInvalidArgument(large.status())) << large.status();
  EXPECT_THAT(std::string(large.status().message()),
              HasSubstr("and there are "));
}

// Whatever of the options it is that is refused after the file was marked.
TEST_F(TiersContract, ARefusedBudgetLeavesAGivenFileAsItWas) {
  const std::string given = first_.Write("given", "");
  const std::string file = absl::StrCat("nvme:", given);
  const std::vector<std::string> refused[] = {
      {"dram=256KiB", file + "=1000000TiB"},
      {"dram=256KiB", file + "=1MiB",
       absl::StrCat("nvme:", second_.path(), "=1000000TiB")},
      {"dram=4000000TiB", file + "=1MiB"},
      {"dram=4KiB", file + "=1MiB"},
  };
  for (const std::vector<std::string>& tiers : refused) {
    EXPECT_FALSE(Create(tiers).ok()) << tiers.front();
    EXPECT_EQ(std::filesystem::file_size(given), 0u) << tiers.front();
  }
  EXPECT_TRUE(Create({"dram=256KiB", file + "=1MiB"}).ok());
}

TEST_F(TiersContract, MemoryOfANodeIsNamedWithIt) {
  const absl::StatusOr<Topology> machine = ReadTopology();
  ASSERT_TRUE(machine.ok()) << machine.status();
  const int node = NearestNode(*machine, machine->cpus);
  const std::string memory = absl::StrCat("dram:node", std::max(0, node));
  const auto runtime = Create(
      {memory + "=256KiB", absl::StrCat("nvme:", first_.path(), "=1MiB")});
  if (absl::IsUnavailable(runtime.status())) {
    GTEST_SKIP() << runtime.status();
  }
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const Stats stats = (*runtime)->GetStats();
  EXPECT_EQ(stats.tiers.at(0).name, memory);
  EXPECT_EQ(stats.links.at(0).from, memory);
  EXPECT_EQ(stats.links.at(1).to, memory);
}

TEST_F(TiersContract, ADeviceIsATierOrItsAbsenceIsNamed) {
  const auto runtime = Create({"dram=256KiB", "hbm:cuda:0=1MiB"});
  if (!runtime.ok()) {
    const absl::Status& status = runtime.status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                testing::StartsWith("tier 'hbm:cuda:0=1MiB': cuda:0: no "));
    return;
  }
  const Stats stats = (*runtime)->GetStats();
  EXPECT_EQ(stats.tiers.at(1).name, "hbm:cuda:0");
  EXPECT_EQ(stats.tiers.at(1).budget_bytes, 1 << 20);
}

TEST_F(TiersContract, ANodeThatThereIsNotIsRefused) {
  const auto runtime = Create({"dram:node4095=1MiB"});
  EXPECT_TRUE(absl::IsUnavailable(runtime.status())) << runtime.status();
}

// On a machine that has such memory: TERRACE_TEST_MOVABLE is its node's number.
// What a ring pins of it leaves its node.
TEST_F(TiersContract, MemoryOfAMovableNodeIsRefusedWithItsMend) {
  const char* const node = std::getenv("TERRACE_TEST_MOVABLE");
  if (node == nullptr) GTEST_SKIP() << "no such memory is named";
  const absl::StatusOr<Topology> topology = ReadTopology();
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_TRUE(std::any_of(topology->nodes.begin(), topology->nodes.end(),
                          [&](const NumaNode& each) {
                            return each.os_index == std::atoi(node) &&
                                   each.movable;
                          }));
  const absl::Status refused = Create({absl::StrCat("dram:node", node, "=4MiB"),
                                       absl::StrCat("nvme:", first_.path())})
                                   .status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(absl::StrCat("memory node ", node)),
                    HasSubstr("daxctl online-memory --no-movable")));
  // A tier that is not pinned may be of it.
  const absl::StatusOr<std::unique_ptr<Runtime>> runtime =
      Create({"dram=4MiB", absl::StrCat("far:node", node, "=4MiB")});
  EXPECT_TRUE(runtime.ok()) << runtime.status();
}

}  // namespace
}  // namespace terrace
