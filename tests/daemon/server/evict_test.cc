// `terrace evict` against a daemon that runs.
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/packet_socket.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/daemon/server/stopped_thread.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class EvictTest : public testing::Test {
 protected:
  static constexpr int64_t kTensor = 64 << 10;
  static constexpr int64_t kRoom = kTensor + kTensorHeaderBytes;

  static ChildResult Run(const RunningDaemon& daemon,
                         const std::vector<std::string>& words,
                         const std::vector<std::string>& before = {}) {
    std::vector<std::string> command = before;
    command.emplace_back(TERRACE_PROGRAM);
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(),
                   {"--daemon", absl::StrCat("unix:", daemon.socket())});
    return ChildProcess(command).Wait();
  }

  static nlohmann::json Evict(const RunningDaemon& daemon,
                              std::vector<std::string> words) {
    words.insert(words.begin(), "evict");
    words.emplace_back("--json");
    const ChildResult result = Run(daemon, words);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return nlohmann::json::parse(result.output, nullptr, false);
  }

  static std::vector<TensorId> Written(Runtime& job, int count, uint8_t first) {
    std::vector<TensorId> tensors;
    for (int i = 0; i < count; ++i) {
      tensors.push_back(*RegisterOf(job, absl::StrCat("t", i), kTensor));
      EXPECT_TRUE(FillOf(job, tensors.back(), static_cast<uint8_t>(first + i)));
    }
    return tensors;
  }

  static int64_t InMemory(Runtime& job) {
    const TierStats memory = job.GetStats().tiers.front();
    return memory.pinned_bytes + memory.dirty_bytes + memory.clean_bytes;
  }
};

TEST_F(EvictTest, AllButPinsGoesDownAndComesBack) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto night = ConnectAs(daemon, 1 << 20, "night");
  auto day = ConnectAs(daemon, 1 << 20, "day");
  ASSERT_TRUE(night.ok() && day.ok());
  const std::vector<TensorId> tensors = Written(**night, 10, 1);
  const std::vector<TensorId> others = Written(**day, 3, 51);
  auto held = (*night)->Acquire(tensors[4], Access::kUpdate, Later());
  ASSERT_TRUE(held.ok()) << held.status();
  const int64_t before = InMemory(**night);
  EXPECT_GT(before, 5 * kRoom);
  const auto json = Evict(daemon, {"night"});
  EXPECT_EQ(json.at("uid"), getuid());
  EXPECT_EQ(json.at("job"), "night");
  ASSERT_EQ(json.at("processes").size(), 1u);
  const auto& told = json.at("processes")[0];
  EXPECT_EQ(told.at("process"), getpid());
  EXPECT_TRUE(told.at("fault").is_null());
  EXPECT_EQ(told.at("pinned_bytes"), kRoom);
  EXPECT_EQ(told.at("pinned_tensors"), 1);
  EXPECT_EQ(told.at("evicted_bytes"), before - kRoom);
  EXPECT_EQ(told.at("unwritten_bytes"), 0);
  EXPECT_EQ(InMemory(**night), kRoom);
  EXPECT_EQ(InMemory(**day), 3 * kRoom);  // nobody asked for these
  EXPECT_TRUE(HasPattern(held->data(), 5));
  WritePattern(held->data(), 77);
  held->Release();
  for (int i = 0; i < 10; ++i) {
    const auto seed = static_cast<uint8_t>(i == 4 ? 77 : 1 + i);
    EXPECT_TRUE(Holds(**night, tensors[static_cast<size_t>(i)], seed)) << i;
  }
  // The text says the same.
  const ChildResult text = Run(daemon, {"evict", "day"});
  EXPECT_EQ(text.exit_code, 0) << text.errors;
  EXPECT_EQ(
      text.output,
      absl::StrCat("process\tevicted\tpinned\tmoving\twanted\twindow\t"
                   "unwritten\n",
                   getpid(),
                   "\t204 KiB\t0 bytes\t0 bytes\t0 bytes\t0 bytes\t0 bytes\n"));
  EXPECT_EQ(InMemory(**day), 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Holds(**day, others[static_cast<size_t>(i)],
                      static_cast<uint8_t>(51 + i)));
  }
  EXPECT_EQ(daemon.End().exit_code, 0);
}

TEST_F(EvictTest, WhatIsNotThereIsRefused) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, 1 << 20, "night");
  ASSERT_TRUE(job.ok()) << job.status();
  const auto refused = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"evict"};
    all.insert(all.end(), words.begin(), words.end());
    const ChildResult result = Run(daemon, all);
    EXPECT_EQ(result.exit_code, 1) << result.output;
    return result.errors;
  };
  EXPECT_THAT(refused({"day"}), HasSubstr("no process of the job 'day'"));
  EXPECT_THAT(refused({"night", "--pid", "1"}),
              HasSubstr("the job 'night' with the number 1 is here"));
  EXPECT_THAT(refused({"night", "--user", "4711"}),
              HasSubstr("no process of the job 'night'"));
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{},
                                             {"a", "b"},
                                             {"night", "--pid", "x"},
                                             {"night", "--pid", "0"},
                                             {"night", "--timeout", "-1"},
                                             {"night", "--user", "no one"}}) {
    std::vector<std::string> all = {"evict"};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_EQ(Run(daemon, all).exit_code, 2);
  }
  const std::string pid = absl::StrCat(getpid());
  const std::string uid = absl::StrCat(getuid());
  EXPECT_EQ(Evict(daemon, {"night", "--pid", pid, "--user", uid})
                .at("processes")
                .size(),
            1u);
}

TEST_F(EvictTest, ARuntimeThatDoesNotAnswerIsNamed) {
  RunningDaemon daemon("drain_seconds = 1\n");
  ASSERT_TRUE(daemon.Serves());
  auto one = ConnectAs(daemon, 1 << 20, "night");
  ASSERT_TRUE(one.ok()) << one.status();
  Written(**one, 1, 1);  // its mover has begun
  const std::vector<pid_t> movers = ThreadsNamed(daemon.pid(), "terrace-mover");
  ASSERT_EQ(movers.size(), 2u);
  auto two = ConnectAs(daemon, 1 << 20, "night");
  ASSERT_TRUE(two.ok()) << two.status();
  Written(**two, 2, 1);
  const StoppedThread stopped(movers.back());
  if (!stopped.ok()) GTEST_SKIP() << "a child may not be traced here";
  const ChildResult result =
      Run(daemon, {"evict", "night", "--timeout", "0", "--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors,
              HasSubstr(absl::StrCat("process ", getpid(),
                                     ": its runtime does not answer")));
  const auto json = nlohmann::json::parse(result.output, nullptr, false);
  ASSERT_EQ(json.at("processes").size(), 2u);  // and the other one did
  EXPECT_EQ(json.at("processes")[0].at("fault"), "its runtime does not answer");
  EXPECT_TRUE(json.at("processes")[1].at("fault").is_null());
  EXPECT_TRUE(daemon.Status().ok());
}

// Each asker has an answer, however many ask at a time, or go meanwhile.
TEST_F(EvictTest, ManyAskAtATime) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, 1 << 20, "night");
  ASSERT_TRUE(job.ok()) << job.status();
  const std::vector<TensorId> tensors = Written(**job, 10, 1);
  const auto bytes =
      Encode({.sequence = 1, .body = EvictionRequest{.job = "night"}});
  std::vector<PacketSocket> askers;
  for (int i = 0; i < 20; ++i) {
    auto socket = PacketSocket::Connect(daemon.socket(), Soon());
    ASSERT_TRUE(socket.ok() && socket->Send(*bytes).ok()) << socket.status();
    if (i % 3 != 0) askers.push_back(*std::move(socket));
  }
  for (PacketSocket& each : askers) {
    const absl::StatusOr<Packet> packet = each.Await(Soon());
    ASSERT_TRUE(packet.ok()) << packet.status();
    const absl::StatusOr<Envelope> answer = Decode(packet->bytes);
    ASSERT_TRUE(answer.ok()) << answer.status();
    const auto* const report = std::get_if<EvictionReport>(&answer->body);
    ASSERT_NE(report, nullptr);
    EXPECT_EQ(report->processes.at(0).fault, "");
  }
  EXPECT_EQ(InMemory(**job), 0);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(Holds(**job, tensors[static_cast<size_t>(i)],
                      static_cast<uint8_t>(1 + i)));
  }
}

// Whoever is no operator evicts its own alone.
TEST_F(EvictTest, AnotherUsersIsNotTouched) {
  if (getuid() != 0) GTEST_SKIP() << "it takes root to be two users";
  const std::vector<std::string> as = {"/usr/bin/setpriv", "--clear-groups",
                                       "--reuid=4711", "--regid=4711"};
  std::vector<std::string> version = as;
  version.insert(version.end(), {TERRACE_PROGRAM, "--version"});
  if (ChildProcess(version).Wait().exit_code != 0) {
    GTEST_SKIP() << TERRACE_PROGRAM << " is for one user";
  }
  RunningDaemon daemon("group = '4711'\n");
  ASSERT_TRUE(daemon.Serves());
  for (const std::string& file : {daemon.config(), daemon.socket()}) {
    std::filesystem::permissions(std::filesystem::path(file).parent_path(),
                                 std::filesystem::perms(0711));
  }
  auto job = ConnectAs(daemon, 1 << 20, "night");
  ASSERT_TRUE(job.ok()) << job.status();
  Written(**job, 3, 1);
  const ChildResult own = Run(daemon, {"evict", "night"}, as);
  EXPECT_EQ(own.exit_code, 1);
  EXPECT_THAT(own.errors, HasSubstr("no process of the job 'night'"));
  const ChildResult named = Run(daemon, {"evict", "night", "--user", "0"}, as);
  EXPECT_EQ(named.exit_code, 1);
  EXPECT_THAT(named.errors, HasSubstr("by that user, by root"));
  EXPECT_EQ(InMemory(**job), 3 * kRoom);
  EXPECT_EQ(Evict(daemon, {"night"}).at("processes").size(), 1u);
  EXPECT_EQ(InMemory(**job), 0);
}

}  // namespace
}  // namespace terrace
