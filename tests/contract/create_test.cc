// options.h and Runtime::Create: what is refused, and how it is said.
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class CreateContract : public testing::Test {
 protected:
  // Of this process: each thread's blocked signals, bit n - 1 for signal n.
  static std::map<std::string, uint64_t> BlockedByThread() {
    std::map<std::string, uint64_t> blocked;
    for (const auto& task :
         std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream status(task.path() / "status");
      for (std::string line; std::getline(status, line);) {
        if (line.rfind("SigBlk:", 0) != 0) continue;
        blocked[task.path().filename()] =
            std::stoull(line.substr(7), nullptr, 16);
      }
    }
    return blocked;
  }

  static Options Small() {
    Options options;
    options.host_budget_bytes = 64 << 10;
    options.huge_pages = HugePages::kOff;
    options.threads = 1;
    return options;
  }
  // The Status of a runtime of one folder.
  absl::Status OnPath(const std::string& path) {
    Options options = Small();
    options.paths = {path};
    return Runtime::Create(options).status();
  }
  static Time Soon() { return absl::Now() + absl::Seconds(30); }

  const TemporaryDirectory directory_;
  const std::string& folder_ = directory_.path();
};

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

TEST_F(CreateContract, ABudgetBelowTheLeastNamesTheLeast) {
  Options options = Small();
  for (const int64_t budget : {int64_t{-1}, int64_t{0}, int64_t{4096}}) {
    options.host_budget_bytes = budget;
    const absl::Status status = Runtime::Create(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr(std::to_string(3 * 8192)));
  }
  options.host_budget_bytes = 3 * 8192;
  EXPECT_TRUE(Runtime::Create(options).ok());
}

TEST_F(CreateContract, BadPathsAreNamed) {
  const std::string missing = folder_ + "/missing";
  absl::Status status = OnPath(missing);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr(missing));
  EXPECT_FALSE(std::filesystem::exists(missing));  // parents are never made
  const std::string file = folder_ + "/file";
  std::ofstream(file) << "not a directory";
  status = OnPath(file);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr(file));
  EXPECT_TRUE(absl::IsInvalidArgument(OnPath("")));
  Options options = Small();
  options.paths = {folder_, folder_};
  EXPECT_TRUE(absl::IsInvalidArgument(Runtime::Create(options).status()));
  options.paths = {folder_};
  options.memory_paths = 1;
  options.memory_path_bytes = 1 << 20;
  EXPECT_TRUE(absl::IsInvalidArgument(Runtime::Create(options).status()));
}

TEST_F(CreateContract, NumbersThatMeanNothingAreRefused) {
  const std::function<void(Options&)> changes[] = {
      [](Options& options) { options.memory_paths = -1; },
      [](Options& options) { options.memory_path_bytes = -1; },
      [](Options& options) { options.memory_path_bytes = INT64_MAX; },
      [](Options& options) { options.pace.read_bytes_per_second = -1; },
      [](Options& options) { options.pace.write_bytes_per_second = -1; },
      [](Options& options) { options.io_timeout = absl::ZeroDuration(); },
      [](Options& options) { options.io_timeout = -absl::Seconds(1); },
  };
  for (const auto& change : changes) {
    Options options = Small();
    options.memory_paths = 1;
    options.memory_path_bytes = 1 << 20;
    options.pace = {.read_bytes_per_second = 1 << 30,
                    .write_bytes_per_second = 1 << 30};
    ASSERT_TRUE(Runtime::Create(options).ok());
    change(options);
    const absl::Status status = Runtime::Create(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

TEST_F(CreateContract, APathThatCannotBeWrittenIsPermissionDenied) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  ASSERT_EQ(chmod(folder_.c_str(), 0500), 0);
  const absl::Status status = OnPath(folder_);
  ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr(folder_));
}

TEST_F(CreateContract, MoreMemoryThanThereIsIsResourceExhausted) {
  Options options = Small();
  options.host_budget_bytes = int64_t{1} << 46;
  const absl::Status status = Runtime::Create(options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST_F(CreateContract, TheEngineThatWasAskedForIsReported) {
  Options options = Small();
  options.paths = {folder_};
  options.engine = EngineKind::kThreads;
  auto runtime = Runtime::Create(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const Stats stats = (*runtime)->GetStats();
  EXPECT_EQ(stats.engine, "threads");
  EXPECT_FALSE(stats.engine_reason.empty());
  ASSERT_EQ(stats.paths().size(), 1u);
  EXPECT_EQ(stats.paths()[0].disk.directory, folder_);
  EXPECT_THAT(stats.paths()[0].disk.file, HasSubstr(folder_));
  // Buffered is a reported fallback, never a silent one.
  EXPECT_TRUE(stats.paths()[0].disk.direct_io ||
              !stats.paths()[0].disk.direct_io_reason.empty());
}

TEST_F(CreateContract, CloseRemovesTheJobsFiles) {
  Options options = Small();
  options.paths = {folder_};
  auto runtime = Runtime::Create(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_FALSE(std::filesystem::is_empty(folder_));
  EXPECT_TRUE((*runtime)->Close(Soon()).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(CreateContract, WithoutPathsEverythingMustFitTheBudget) {
  auto runtime = Runtime::Create(Small());  // room for 8 tensors of a page
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  std::vector<TensorId> tensors;
  for (int i = 0; i < 9; ++i) {
    auto id =
        (*runtime)->Register({.name = std::to_string(i), .size_bytes = 4096});
    ASSERT_TRUE(id.ok()) << id.status();
    tensors.push_back(*id);
  }
  auto queue = (*runtime)->OpenQueue(4096, 2, Soon());
  ASSERT_TRUE(queue.ok()) << queue.status();
  for (int i = 0; i < 9; ++i) {
    ASSERT_TRUE(
        (*queue)->Push({{tensors[i], Access::kOverwrite}}, 0, Soon()).ok());
    absl::StatusOr<Ready> ready = (*queue)->Next(Soon());
    ASSERT_TRUE(ready.ok()) << ready.status();
    if (i == 8) {
      EXPECT_TRUE(absl::IsResourceExhausted(ready->pins.status()));
      break;
    }
    ASSERT_TRUE(ready->pins.ok()) << ready->pins.status();
    ready->pins->front().data()[0] = static_cast<std::byte>(i);
  }
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE((*queue)->Push({{tensors[i], Access::kRead}}, 0, Soon()).ok());
    absl::StatusOr<Ready> ready = (*queue)->Next(Soon());
    ASSERT_TRUE(ready.ok() && ready->pins.ok());
    EXPECT_EQ(ready->pins->front().data()[0], static_cast<std::byte>(i));
  }
}

TEST_F(CreateContract, NoRoomOnAnyPathIsResourceExhausted) {
  Options options = Small();
  options.memory_paths = 2;
  options.memory_path_bytes = 3 * 8192;
  auto runtime = Runtime::Create(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE((*runtime)
                    ->Register({.name = std::to_string(i), .size_bytes = 4096})
                    .ok());
  }
  const absl::Status large =
      (*runtime)->Register({.name = "last", .size_bytes = 8192}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(large)) << large;
  // The name of what was refused is free.
  EXPECT_TRUE((*runtime)->Register({.name = "last", .size_bytes = 4096}).ok());
  const absl::Status full =
      (*runtime)->Register({.name = "7", .size_bytes = 4096}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  for (const TierStats& path : (*runtime)->GetStats().paths()) {
    EXPECT_EQ(path.used_bytes, 3 * 8192);  // spread over both
  }
}

// A program's handlers run in its own threads.
TEST_F(CreateContract, SignalsStayOutOfTheLibrarysThreads) {
  Options options = Small();
  options.paths = {folder_};
  options.engine = EngineKind::kThreads;
  options.threads = 2;
  const auto before = BlockedByThread();
  auto runtime = Runtime::Create(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  int of_the_library = 0;
  for (const auto& [thread, blocked] : BlockedByThread()) {
    if (before.count(thread) != 0) {
      EXPECT_EQ(blocked, before.at(thread));
      continue;
    }
    ++of_the_library;
    for (const int signal : {SIGINT, SIGTERM, SIGALRM, SIGUSR1, SIGCHLD}) {
      EXPECT_NE(blocked >> (signal - 1) & 1, 0u) << strsignal(signal);
    }
  }
  EXPECT_GT(of_the_library, 3);  // mover, executor, engine
}

TEST_F(CreateContract, WhatAKilledJobLeftIsRemovedInTheBackground) {
  directory_.Write("terrace-1-0123456789abcdef/lock", "");
  directory_.Write("terrace-1-0123456789abcdef/state", "theirs");
  Options options = Small();
  options.paths = {folder_};
  auto runtime = Runtime::Create(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const Time deadline = Soon();
  while (directory_.Entries().size() > 1 && absl::Now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(directory_.Entries().size(), 1u);  // the runtime's own
  EXPECT_TRUE((*runtime)->Close(Soon()).ok());
  EXPECT_TRUE(directory_.empty());
}

TEST_F(CreateContract, WhatAKilledJobLeftMakesRoomFirst) {
  directory_.Write("terrace-1-0123456789abcdef/lock", "");
  directory_.Write("terrace-1-0123456789abcdef/state", "theirs");
  Options options = Small();
  options.paths = {folder_};
  auto runtime = Runtime::Create(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_TRUE((*runtime)->Register({.name = "a", .size_bytes = 1}).ok());
  EXPECT_EQ(directory_.Entries().size(), 1u);
}

}  // namespace
}  // namespace terrace
