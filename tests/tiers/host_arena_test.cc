#include "tiers/memory/host_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/machine.h"
#include "tiers/memory/topology.h"

namespace terrace {
namespace {

constexpr int64_t kHuge = 2 << 20;

// "key: N kB" of the mapping that starts at `data`, in bytes; -1: none.
int64_t SmapsBytes(const void* data, const std::string& key) {
  std::ifstream smaps("/proc/self/smaps");
  std::ostringstream start;
  start << std::hex << reinterpret_cast<uintptr_t>(data) << "-";
  std::string line;
  bool inside = false;
  while (std::getline(smaps, line)) {
    if (line.rfind(start.str(), 0) == 0) {
      inside = true;
    } else if (inside && line.rfind(key + ":", 0) == 0) {
      return std::stoll(line.substr(key.size() + 1)) * 1024;
    }
  }
  return -1;
}

std::unique_ptr<HostArena> MustCreate(const HostArenaOptions& options) {
  absl::StatusOr<std::unique_ptr<HostArena>> arena = HostArena::Create(options);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return arena.ok() ? *std::move(arena) : nullptr;
}

// Runs `body` in a child whose failures and exit code are this test's.
template <typename Body>
void InChild(Body body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "status " << status;
}

TEST(HostArenaTest, IsAlignedZeroedAndWritable) {
  const auto arena = MustCreate({.size_bytes = 9 * kHuge + 12345});
  ASSERT_NE(arena, nullptr);
  const absl::Span<std::byte> bytes = arena->bytes();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % kHuge, 0u);
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), 9 * kHuge + 4 * 4096);
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(),
                          [](std::byte b) { return b == std::byte{0}; }));
  std::fill(bytes.begin(), bytes.end(), std::byte{0x5a});
}

// 70 MiB and a little: more than one piece, so both threads work.
TEST(HostArenaTest, IsPopulatedAndCostsItsSizeAndNoMore) {
  for (const HugePages huge : {HugePages::kOff, HugePages::kPreferred}) {
    const int64_t size = 35 * kHuge + 5 * 4096;
    const auto arena = MustCreate({.size_bytes = size, .huge_pages = huge});
    ASSERT_NE(arena, nullptr);
    EXPECT_EQ(SmapsBytes(arena->bytes().data(), "Size"), size);
    EXPECT_EQ(SmapsBytes(arena->bytes().data(), "Rss"), size);
  }
}

TEST(HostArenaTest, TheHugeShareIsWhatSmapsSays) {
  const int64_t size = 8 * kHuge + 4096;
  const auto arena = MustCreate({.size_bytes = size});
  ASSERT_NE(arena, nullptr);
  const int64_t huge = SmapsBytes(arena->bytes().data(), "AnonHugePages");
  ASSERT_GE(huge, 0);
  EXPECT_DOUBLE_EQ(arena->huge_page_share(),
                   static_cast<double>(huge) / static_cast<double>(size));
}

TEST(HostArenaTest, HugePagesAreNotTakenWhenOff) {
  const auto arena =
      MustCreate({.size_bytes = 8 * kHuge, .huge_pages = HugePages::kOff});
  ASSERT_NE(arena, nullptr);
  EXPECT_EQ(arena->huge_page_share(), 0);
}

TEST(HostArenaTest, RequiredHugePagesAreHadOrRefused) {
  const absl::StatusOr<std::unique_ptr<HostArena>> arena = HostArena::Create(
      {.size_bytes = 4 * kHuge, .huge_pages = HugePages::kRequired});
  if (arena.ok()) {
    EXPECT_EQ((*arena)->huge_page_share(), 1);
    EXPECT_EQ(SmapsBytes((*arena)->bytes().data(), "AnonHugePages"), 4 * kHuge);
  } else {
    EXPECT_TRUE(absl::IsUnavailable(arena.status())) << arena.status();
  }
}

TEST(HostArenaTest, ImpossibleHugePagesAreRefusedOrReported) {
  InChild([] {
    ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    const auto required = HostArena::Create(
        {.size_bytes = 4 * kHuge, .huge_pages = HugePages::kRequired});
    EXPECT_TRUE(absl::IsUnavailable(required.status())) << required.status();
    EXPECT_NE(required.status().ToString().find("transparent_hugepage"),
              std::string::npos);
    const auto preferred = HostArena::Create({.size_bytes = 4 * kHuge});
    ASSERT_TRUE(preferred.ok()) << preferred.status();
    EXPECT_EQ((*preferred)->huge_page_share(), 0);
  });
}

TEST(HostArenaTest, TooSmallForOneHugePageCannotRequireThem) {
  const auto arena = HostArena::Create(
      {.size_bytes = 4096, .huge_pages = HugePages::kRequired});
  EXPECT_TRUE(absl::IsUnavailable(arena.status())) << arena.status();
}

TEST(HostArenaTest, MoreThanThereIsIsRefusedBeforeItIsTouched) {
  const int64_t available = AvailableMemoryBytes();
  for (const int64_t size : {2 * available, INT64_MAX / 4}) {
    const auto arena = HostArena::Create({.size_bytes = size});
    EXPECT_TRUE(absl::IsResourceExhausted(arena.status())) << arena.status();
  }
}

TEST(HostArenaTest, NoBytesAreRefused) {
  for (const int64_t size : {int64_t{0}, int64_t{-1}, INT64_MAX}) {
    const auto arena = HostArena::Create({.size_bytes = size});
    EXPECT_TRUE(absl::IsInvalidArgument(arena.status())) << arena.status();
  }
}

TEST(HostArenaTest, ANodeThatIsNotThereIsRefused) {
  const auto arena =
      HostArena::Create({.size_bytes = kHuge, .numa_node = 4095});
  EXPECT_TRUE(absl::IsUnavailable(arena.status())) << arena.status();
}

TEST(HostArenaTest, LiesOnTheNodeAskedFor) {
  const absl::StatusOr<Topology> topology = ReadTopology();
  ASSERT_TRUE(topology.ok()) << topology.status();
  const int node = topology->nodes.back().os_index;
  const auto arena =
      HostArena::Create({.size_bytes = 3 * kHuge + 4096, .numa_node = node});
  if (absl::IsUnavailable(arena.status())) {
    GTEST_SKIP() << "the kernel does not bind here: " << arena.status();
  }
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ((*arena)->asked_node(), node);
  EXPECT_EQ((*arena)->found_node(), node);
  // Locked pages stay where they are, but for those of movable memory.
  const absl::Span<std::byte> bytes = (*arena)->bytes();
  if (mlock(bytes.data(), bytes.size()) != 0) return;
  const absl::Status pinned = (*arena)->CheckPinned();
  EXPECT_TRUE(pinned.ok() || topology->nodes.back().movable) << pinned;
}

TEST(HostArenaTest, PagesThatLeftTheirNodeWhenPinnedAreNamedWithTheCommand) {
  EXPECT_TRUE(StayedOnNode(kHuge, 2, {2}).ok());
  for (const std::vector<int>& nodes :
       {std::vector<int>{0}, std::vector<int>{0, 2}, std::vector<int>{}}) {
    const absl::Status left = StayedOnNode(kHuge, 2, nodes);
    EXPECT_TRUE(absl::IsUnavailable(left)) << left;
    EXPECT_THAT(
        left.ToString(),
        testing::AllOf(
            testing::HasSubstr("2097152 bytes"),
            testing::HasSubstr("memory node 2"),
            testing::HasSubstr("pages lie on " + absl::StrJoin(nodes, ", ")),
            testing::HasSubstr("daxctl online-memory --no-movable")));
  }
}

TEST(HostArenaTest, WithoutANodeNothingCanLeaveIt) {
  const auto arena = HostArena::Create({.size_bytes = kHuge});
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_TRUE((*arena)->CheckPinned().ok());
}

TEST(HostArenaTest, APreferenceIsTriedAndWhatWasFoundReported) {
  const absl::StatusOr<Topology> topology = ReadTopology();
  ASSERT_TRUE(topology.ok()) << topology.status();
  std::set<int> nodes;
  for (const NumaNode& node : topology->nodes) nodes.insert(node.os_index);
  const int node = topology->nodes.front().os_index;
  // 70 MiB: more pages than a sample has.
  for (const int preferred : {node, 4095, -1}) {
    const auto arena = HostArena::Create(
        {.size_bytes = 35 * kHuge, .preferred_node = preferred});
    ASSERT_TRUE(arena.ok()) << arena.status();
    EXPECT_EQ((*arena)->asked_node(), preferred);
    const int found = (*arena)->found_node();
    EXPECT_TRUE(found == -1 || nodes.count(found) == 1) << found;
  }
}

TEST(HostArenaTest, ANodeAskedForGoesBeforeAPreference) {
  const auto arena = HostArena::Create(
      {.size_bytes = kHuge, .numa_node = 4095, .preferred_node = 0});
  EXPECT_TRUE(absl::IsUnavailable(arena.status())) << arena.status();
}

TEST(HostArenaTest, AForkedChildHasNoSuchMapping) {
  const auto arena = MustCreate({.size_bytes = kHuge});
  ASSERT_NE(arena, nullptr);
  void* data = arena->bytes().data();
  InChild([data] {
    unsigned char resident = 0;
    EXPECT_NE(mincore(data, 4096, &resident), 0);
  });
}

TEST(HostArenaTest, GrowsAtItsEndAsFarAsAddressesWereReserved) {
  const auto arena =
      MustCreate({.size_bytes = kHuge + 4096, .growth_bytes = 3 * 4096 - 1});
  ASSERT_NE(arena, nullptr);
  std::byte* const data = arena->bytes().data();
  const size_t before = arena->bytes().size();
  data[before - 1] = std::byte{7};
  ASSERT_TRUE(arena->Grow(2 * 4096 - 5).ok());
  EXPECT_EQ(arena->bytes().data(), data);
  ASSERT_EQ(arena->bytes().size(), before + 2 * 4096);
  unsigned char resident[2] = {0, 0};
  ASSERT_EQ(mincore(data + before, 2 * 4096, resident), 0);
  EXPECT_TRUE((resident[0] & 1) != 0 && (resident[1] & 1) != 0);
  data[before + 2 * 4096 - 1] = std::byte{8};
  EXPECT_EQ(data[before - 1], std::byte{7});

  const absl::Status beyond = arena->Grow(4097);
  EXPECT_EQ(beyond.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(beyond.message()),
              testing::HasSubstr("growth by 4097 bytes: 4096 bytes of "
                                 "addresses are reserved for it"));
  EXPECT_EQ(arena->bytes().size(), before + 2 * 4096);
  EXPECT_EQ(arena->Grow(0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(arena->Grow(4096).ok());
  InChild([&] {
    EXPECT_NE(mincore(data + before, 4096, resident), 0);  // none of its own
  });
}

TEST(HostArenaTest, GrowthThatIsNoneIsRefused) {
  for (const int64_t growth : {int64_t{-1}, INT64_MAX}) {
    EXPECT_EQ(HostArena::Create({.size_bytes = 4096, .growth_bytes = growth})
                  .status()
                  .code(),
              absl::StatusCode::kInvalidArgument);
  }
  const auto arena = MustCreate({.size_bytes = 4096});
  ASSERT_NE(arena, nullptr);
  EXPECT_EQ(arena->Grow(1).code(), absl::StatusCode::kResourceExhausted);
}

// As another process would have it: a second mapping of the file.
TEST(HostArenaTest, ASharedOneIsAMemoryFileOfOneSize) {
  const auto arena = MustCreate({.size_bytes = 3 << 12,
                                 .growth_bytes = 2 << 12,
                                 .huge_pages = HugePages::kOff,
                                 .shared = true});
  const int fd = arena->memory_file().get();
  ASSERT_EQ(arena->memory_file_bytes(), 5 << 12);
  void* const other =
      mmap(nullptr, 5 << 12, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(other, MAP_FAILED);
  auto* const bytes = static_cast<std::byte*>(other);
  arena->bytes()[5000] = std::byte{7};
  EXPECT_EQ(bytes[5000], std::byte{7});
  bytes[1] = std::byte{8};
  EXPECT_EQ(arena->bytes()[1], std::byte{8});
  ASSERT_TRUE(arena->Grow(2 << 12).ok());
  ASSERT_EQ(arena->bytes().size(), size_t{5 << 12});
  arena->bytes()[4 << 12] = std::byte{9};
  EXPECT_EQ(bytes[4 << 12], std::byte{9});
  for (const off_t size : {0, 4 << 12, 6 << 12}) {
    EXPECT_EQ(ftruncate(fd, size), -1) << size;
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
  struct stat found = {};
  ASSERT_EQ(fstat(fd, &found), 0);
  EXPECT_EQ(found.st_mode & 0777, mode_t{0600});
  munmap(other, 5 << 12);
  const auto own = MustCreate({.size_bytes = 1 << 12});
  EXPECT_FALSE(own->memory_file().ok());
}

TEST(HostArenaTest, UnmapsUnlessLeaked) {
  for (const bool leak : {false, true}) {
    auto arena = MustCreate({.size_bytes = kHuge});
    ASSERT_NE(arena, nullptr);
    const absl::Span<std::byte> bytes = arena->bytes();
    if (leak) arena->Leak();
    arena.reset();
    unsigned char resident = 0;
    EXPECT_EQ(mincore(bytes.data(), 4096, &resident) == 0, leak);
    if (leak) munmap(bytes.data(), bytes.size());
  }
}

using HostArenaDeathTest = testing::Test;

TEST(HostArenaDeathTest, OverrunsAreCaught) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto arena = MustCreate({.size_bytes = 4096});
  ASSERT_NE(arena, nullptr);
  volatile std::byte* end = arena->bytes().data() + 4096;
  EXPECT_DEATH(*end = std::byte{1}, "");
}

TEST(HostArenaDeathTest, WhatMayStillGrowIsNotThereYet) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto arena = MustCreate({.size_bytes = 4096, .growth_bytes = 8192});
  ASSERT_NE(arena, nullptr);
  ASSERT_TRUE(arena->Grow(4096).ok());
  volatile std::byte* end = arena->bytes().data() + 8192;
  EXPECT_DEATH(*end = std::byte{1}, "");
}

}  // namespace
}  // namespace terrace
