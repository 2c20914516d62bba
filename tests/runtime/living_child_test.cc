// runtime.h: what a child of fork() keeps of its parent's runtime while it
// lives, as the workers of a data loader do: nothing. The parent's paths,
// memory and locks are free as soon as the parent gives them back, or dies.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/loop_device.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/own_child.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

constexpr int64_t kSize = 64 << 10;
constexpr int kTensors = 8;

Time Soon() { return absl::Now() + absl::Seconds(20); }

class LivingChildContract : public testing::Test {
 protected:
  static Options On(const std::string& path,
                    EngineKind engine = EngineKind::kAuto) {
    Options options;
    options.host_budget_bytes = 512 << 10;
    options.huge_pages = HugePages::kOff;
    options.threads = 1;
    options.engine = engine;
    options.paths = {path};
    return options;
  }

  // Tensors of more bytes than memory holds, filled and read back.
  static absl::Status Use(Runtime& runtime) {
    std::vector<TensorId> tensors;
    for (int i = 0; i < kTensors; ++i) {
      TensorSpec spec;
      spec.name = "tensor " + std::to_string(i);
      spec.size_bytes = 2 * kSize;
      const auto id = runtime.Register(spec);
      if (!id.ok()) return id.status();
      tensors.push_back(*id);
    }
    for (const bool fills : {true, false}) {
      for (int i = 0; i < kTensors; ++i) {
        auto pin = runtime.Acquire(
            tensors[i], fills ? Access::kOverwrite : Access::kRead, Soon());
        if (!pin.ok()) return pin.status();
        std::byte* const data = pin->data().data();
        const auto value = static_cast<std::byte>(i + 1);
        if (fills) {
          std::memset(data, i + 1, 2 * kSize);
        } else if (!std::all_of(data, data + 2 * kSize,
                                [&](std::byte b) { return b == value; })) {
          return absl::DataLossError("other bytes");
        }
      }
    }
    for (const TensorId id : tensors) {
      const absl::Status status = runtime.Unregister(id);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // A line of /proc/self/status.
  static int64_t KiBOf(const std::string& what) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind(what + ":", 0) == 0) {
        return std::stoll(line.substr(what.size() + 1));
      }
    }
    return -1;
  }
  // Of this process, as far as the kernel counts them.
  static int64_t PinnedKiB() { return KiBOf("VmPin"); }

  template <typename Condition>
  static bool Within(absl::Duration patience, Condition condition) {
    const absl::Time end = absl::Now() + patience;
    while (!condition()) {
      if (absl::Now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }

  TemporaryDirectory directory_;
};

TEST_F(LivingChildContract, ADeviceIsFreeOnceItsRuntimeIsClosed) {
  LoopDevice device(16 << 20);
  if (!device.ok()) GTEST_SKIP() << device.reason();
  for (const EngineKind engine :
       {EngineKind::kAuto, EngineKind::kThreads, EngineKind::kAuto}) {
    auto runtime = Runtime::Create(On(device.path(), engine));
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    const absl::Status before = Use(**runtime);
    EXPECT_TRUE(before.ok()) << before;
    const LivingChild child;
    const absl::Status status = Use(**runtime);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE((*runtime)->Close(Soon()).ok());
    runtime = absl::UnknownError("closed");
    auto again = Runtime::Create(On(device.path(), engine));
    EXPECT_TRUE(again.ok()) << again.status();
    if (again.ok()) {
      const absl::Status used = Use(**again);
      EXPECT_TRUE(used.ok()) << used;
    }
  }
}

TEST_F(LivingChildContract, AFileIsFreeOnceItsRuntimeDied) {
  const std::string file = directory_.Write("given", "");
  const ChildOfAKilledParent child([&](absl::FunctionRef<void()> leave) {
    auto runtime = Runtime::Create(On(file));
    if (!runtime.ok() || !Use(**runtime).ok()) return;
    leave();
  });
  ASSERT_TRUE(child.ok());
  const auto next = Runtime::Create(On(file));
  EXPECT_TRUE(next.ok()) << next.status();
}

TEST_F(LivingChildContract, AKilledJobsFilesAreRemovedByTheNext) {
  const std::string& folder = directory_.path();
  const ChildOfAKilledParent child([&](absl::FunctionRef<void()> leave) {
    auto runtime = Runtime::Create(On(folder));
    if (!runtime.ok() || !Use(**runtime).ok()) return;
    leave();
  });
  ASSERT_TRUE(child.ok());
  const auto files = [&] {
    const std::filesystem::directory_iterator all(folder);
    return std::distance(begin(all), end(all));
  };
  EXPECT_EQ(files(), 1);
  {
    auto next = Runtime::Create(On(folder));
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_TRUE(Within(absl::Seconds(10), [&] { return files() == 1; }))
        << files();
  }
  EXPECT_EQ(files(), 0);
}

TEST_F(LivingChildContract, MemoryThatWasPinnedIsGivenBack) {
  Options options = On(directory_.path(), EngineKind::kUring);
  options.host_budget_bytes = 64 << 20;
  auto runtime = Runtime::Create(options);
  if (!runtime.ok()) GTEST_SKIP() << runtime.status();
  const int64_t pinned = PinnedKiB();
  if (pinned < 64 << 10) GTEST_SKIP() << "the arena is not registered";
  const LivingChild child;
  const absl::Status status = Use(**runtime);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE((*runtime)->Close(Soon()).ok());
  runtime = absl::UnknownError("closed");
  EXPECT_TRUE(Within(absl::Seconds(5), [] { return PinnedKiB() == 0; }))
      << PinnedKiB() << " KiB are pinned";
}

TEST_F(LivingChildContract, AChildHasNoDescriptorOfIt) {
  const std::set<std::string> before = OpenDescriptors();
  for (const EngineKind engine : {EngineKind::kAuto, EngineKind::kThreads}) {
    Options options = On(directory_.Write("given", ""), engine);
    options.paths.push_back(directory_.MakeDirectory("folder"));
    auto runtime = Runtime::Create(options);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    const absl::Status status = Use(**runtime);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_GT(OpenDescriptors().size(), before.size());
    EXPECT_TRUE(InChild([&] {
      for (const std::string& each : OpenDescriptors()) {
        if (!before.contains(each)) std::cerr << "kept: " << each << "\n";
      }
      return OpenDescriptors() == before;
    }));
  }
}

TEST_F(LivingChildContract, AChildHasNoneOfItsMemory) {
  constexpr int64_t kMiB = 1 << 20;
  Options options;
  options.huge_pages = HugePages::kOff;
  options.threads = 1;
  options.host_budget_bytes = 64 * kMiB;
  options.memory_paths = 2;
  options.memory_path_bytes = 128 * kMiB;
  const auto runtime = Runtime::Create(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const absl::Status status = Use(**runtime);
  EXPECT_TRUE(status.ok()) << status;
  const int64_t parents_kib = KiBOf("VmSize");
  EXPECT_TRUE(InChild([&] {
    return KiBOf("VmSize") <= parents_kib - (64 + 2 * 128) * kMiB / 1024;
  }));
}

TEST_F(LivingChildContract, AChildHasARuntimeOfItsOwn) {
  if (!kChildMayStartThreads) GTEST_SKIP() << "a runtime has threads";
  for (const EngineKind engine : {EngineKind::kAuto, EngineKind::kThreads}) {
    auto runtime = Runtime::Create(On(directory_.path(), engine));
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    const absl::Status status = Use(**runtime);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(InChild([&] {
      auto own = Runtime::Create(On(directory_.path(), engine));
      // And its child.
      const bool is_good =
          own.ok() && Use(**own).ok() && InChild([&] {
            auto next = Runtime::Create(On(directory_.path(), engine));
            return next.ok() && Use(**next).ok() &&
                   absl::IsCancelled(Use(**own)) && (*next)->Close(Soon()).ok();
          });
      return is_good && absl::IsCancelled(Use(**runtime)) && Use(**own).ok() &&
             (*own)->Close(Soon()).ok();
    }));
    const absl::Status after = Use(**runtime);
    EXPECT_TRUE(after.ok()) << after;
  }
}

}  // namespace
}  // namespace terrace
