// A process of a job that is killed, whatever it has asked for: its memory, its
// bytes of the disk and its quota are back at once, and others do not notice.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "terrace/byte_queue.h"
#include "tests/daemon/server/hostile/hostile_job.h"
#include "tests/daemon/server/hostile/played_process.h"

namespace terrace {
namespace {

using Stage = PlayedProcess::Stage;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kMost = 256 * kMiB;   // that a killed process has
constexpr int64_t kLittle = 16 * kMiB;  // where its bytes are to be on a disk
constexpr int64_t kTensor = kMiB - kTensorHeaderBytes;

// From the kill on, with what of its I/O was under way.
constexpr absl::Duration kAtOnce =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    absl::Seconds(5);
#else
    absl::Milliseconds(100);
#endif

// What a process does until it is killed: by the library, or by bare messages
// where a request is to be there and not answered.
struct KilledState {
  const char* name;
  void (*play)(const RunningDaemon& daemon, Stage& stage);
  // The kernel makes so much for it, which has to end first.
  int64_t made_bytes = 0;
};

std::unique_ptr<Runtime> Connected(const RunningDaemon& daemon,
                                   int64_t memory_bytes) {
  auto job = ConnectAs(daemon, memory_bytes, "killed");
  TERRACE_CHECK(job.ok());
  return *std::move(job);
}

std::vector<TensorId> RegisterMany(Runtime& job, int count) {
  std::vector<TensorId> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back(*RegisterOf(job, absl::StrCat("t", i), kTensor));
  }
  return tensors;
}

void AsksForMemory(const RunningDaemon& daemon, Stage& stage) {
  auto socket = PacketSocket::Connect(daemon.socket(), Soon());
  TERRACE_CHECK(socket.ok());
  TERRACE_CHECK(*socket->Send(
      *Encode({.body = Hello{.version = kVersion, .memory_bytes = kMost}})));
  stage.Tell();
  stage.Await();
}

// More than is read: who hears none of the answers fills its ring at last.
void Registers(const RunningDaemon& daemon, Stage& stage) {
  RawJob job(daemon);
  bool is_full = false;
  for (uint64_t number = 1; !is_full; ++number) {
    RegisterRequest request{{.number = number}, {}};
    for (int i = 0; i < 100; ++i) {
      TensorSpec& spec = request.specs.emplace_back();
      spec.name = absl::StrCat("t", number, ".", i);
      spec.size_bytes = 4096;
    }
    JobRequests requests;
    requests.posted = number;
    requests.requests.push_back(std::move(request));
    is_full = !job.Write(*Encode({.body = std::move(requests)}));
    if (number == 2) stage.Tell();
  }
  stage.Await();
}

void FillsAPin(const RunningDaemon& daemon, Stage& stage) {
  const auto job = Connected(daemon, kMost);
  auto pin =
      job->Acquire(*RegisterOf(*job, "large", kMost / 2 - kTensorHeaderBytes),
                   Access::kOverwrite, Later());
  TERRACE_CHECK(pin.ok());
  stage.Tell();
  for (int value = 1;; value = value % 100 + 1) {
    std::memset(pin->data().data(), value, pin->data().size());
  }
}

void HoldsPins(const RunningDaemon& daemon, Stage& stage) {
  const auto job = Connected(daemon, kMost);
  std::vector<Pin> pins;
  const std::vector<TensorId> tensors = RegisterMany(*job, 100);
  for (const TensorId tensor : tensors) {
    auto pin = job->Acquire(tensor, Access::kOverwrite, Later());
    TERRACE_CHECK(pin.ok());
    WritePattern(pin->data(), 1);
    if (tensor.value % 2 == 0) pins.push_back(*std::move(pin));
  }
  stage.Tell();
  stage.Await();
}

// Four times what memory holds, again and again; a large part of it is on the
// disk when it tells.
void WritesBack(const RunningDaemon& daemon, Stage& stage) {
  const auto job = Connected(daemon, kLittle);
  const std::vector<TensorId> tensors = RegisterMany(*job, 64);
  for (int round = 0;; ++round) {
    for (const TensorId tensor : tensors) {
      TERRACE_CHECK(FillOf(*job, tensor, static_cast<uint8_t>(round)));
    }
    if (round == 0) stage.Tell();
  }
}

void Reads(const RunningDaemon& daemon, Stage& stage) {
  const auto job = Connected(daemon, kLittle);
  const std::vector<TensorId> tensors = RegisterMany(*job, 64);
  for (const TensorId tensor : tensors) {
    TERRACE_CHECK(FillOf(*job, tensor, 1));
  }
  for (int round = 0;; ++round) {
    job->Prefetch(tensors);
    for (const TensorId tensor : tensors) {
      TERRACE_CHECK(Holds(*job, tensor, 1));
    }
    if (round == 0) stage.Tell();
  }
}

void WaitsForAGroup(const RunningDaemon& daemon, Stage& stage) {
  RawJob job(daemon);
  const TensorId tensor = job.Register(1, "a");
  const int64_t one = job.Open(2);
  const int64_t two = job.Open(3);
  TERRACE_CHECK(job.Take(one, tensor, Access::kOverwrite).ok());
  for (int i = 0; i < 10; ++i) job.Push(two, tensor, Access::kUpdate);
  stage.Tell();
  stage.Await();
}

void WaitsForAQueue(const RunningDaemon& daemon, Stage& stage) {
  RawJob job(daemon);
  job.Open(1, kHostileMemory / 4 - kTensorHeaderBytes);
  for (uint64_t number = 2; number < 6; ++number) {
    job.Ask(OpenRequest{.id = {.number = number},
                        .slot_bytes = kHostileMemory / 4 - kTensorHeaderBytes,
                        .slots = 2,
                        .deadline = absl::InfiniteFuture()});
  }
  stage.Tell();
  stage.Await();
}

void Unregisters(const RunningDaemon& daemon, Stage& stage) {
  RawJob job(daemon);
  const int64_t queue = job.Open(1);
  for (uint64_t i = 0; i < 40; ++i) {
    const TensorId tensor = job.Register(2 + 2 * i, absl::StrCat("t", i));
    const auto taken = job.Take(queue, tensor, Access::kOverwrite);
    TERRACE_CHECK(taken.ok());
    job.Ask(EndPinRequest{.token = taken->token});
    job.Ask(UnregisterRequest{{.number = 3 + 2 * i}, tensor});
    if (i < 39) TERRACE_CHECK(job.Outcome().ok());
  }
  stage.Tell();
  stage.Await();
}

// Of a step, with what was written in it.
void Commits(const RunningDaemon& daemon, Stage& stage) {
  RawJob job(daemon);
  const int64_t queue = job.Open(1, 64 << 10);
  job.Ask(StepRequest{{.number = 2}, StepRequest::Kind::kBegin, queue, 1});
  TERRACE_CHECK(job.Outcome().ok());
  for (uint64_t i = 0; i < 20; ++i) {
    const TensorId tensor = job.Register(3 + i, absl::StrCat("t", i), 64 << 10);
    const auto taken = job.Take(queue, tensor, Access::kOverwrite);
    TERRACE_CHECK(taken.ok());
    job.Ask(EndPinRequest{.token = taken->token});
  }
  job.Ask(StepRequest{{.number = 99}, StepRequest::Kind::kCommit, queue, 1});
  stage.Tell();
  stage.Await();
}

void Grows(const RunningDaemon& daemon, Stage& stage) {
  RawJob job(daemon, kHostileMemory, kMost - kHostileMemory);
  for (uint64_t number = 1; number < 4; ++number) {
    job.Ask(GrowRequest{{.number = number}, kMost / 4});
  }
  stage.Tell();
  stage.Await();
}

// With all of its memory to be written first.
void Closes(const RunningDaemon& daemon, Stage& stage) {
  RawJob job(daemon, kLittle);
  const int64_t queue = job.Open(1, kTensor);
  for (uint64_t i = 0; i < 13; ++i) {
    const TensorId tensor = job.Register(2 + i, absl::StrCat("t", i), kTensor);
    const auto taken = job.Take(queue, tensor, Access::kOverwrite);
    TERRACE_CHECK(taken.ok());
    job.Ask(EndPinRequest{.token = taken->token});
  }
  job.Ask(CloseQueueRequest{queue});
  job.Ask(CloseRequest{{.number = 99}, absl::InfiniteFuture()});
  stage.Tell();
  stage.Await();
}

// A queue of bytes whose last group is beyond the budget, and another that
// waits for what is in use.
void IsBeyondItsBudget(const RunningDaemon& daemon, Stage& stage) {
  const auto job = Connected(daemon, kLittle);
  const std::unique_ptr<ByteQueue> queue = *job->OpenBytes(kLittle);
  std::vector<Pin> pins;
  std::vector<uint64_t> tokens;
  for (const char* name : {"a", "b", "c"}) {
    const TensorId tensor =
        *RegisterOf(*job, name, kLittle / 2 - kTensorHeaderBytes);
    const auto request =
        queue->Push({{tensor, Access::kOverwrite}}, tokens, Later());
    TERRACE_CHECK(request.ok());
    while (pins.size() == tokens.size()) {
      auto news = queue->Await(*request, Later());
      TERRACE_CHECK(news.ok());
      for (const uint64_t token : news->recalls) queue->Keep(token);
      if (!news->pins.has_value()) continue;
      TERRACE_CHECK(news->pins->ok());
      pins.push_back(std::move((*news->pins)->front()));
    }
    tokens.push_back(pins.back().token());
    WritePattern(pins.back().data(), 1);
  }
  TERRACE_CHECK(job->GetStats().bytes.beyond_bytes > 0);
  const Want first = {pins.front().tensor(), Access::kUpdate};
  TERRACE_CHECK(queue->Push({&first, 1}, {}, Later()).ok());
  TERRACE_CHECK(job->GetStats().bytes.beyond_bytes > 0);  // it is heard
  stage.Tell();
  stage.Await();
}

class KilledStates : public testing::TestWithParam<KilledState> {
 protected:
  void SetUp() override {
    if (!kChildrenHaveThreads) GTEST_SKIP() << "a child may have no threads";
    RunningDaemon::Setting setting;
    setting.tiers =
        absl::StrCat("'dram=320MiB', 'nvme:", path_.path(), "=320MiB'");
    daemon_ = std::make_unique<RunningDaemon>("", setting);
    ASSERT_TRUE(daemon_->Serves());
    auto other = ConnectAs(*daemon_, kMiB, "other");
    ASSERT_TRUE(other.ok()) << other.status();
    other_ = *std::move(other);
    for (int i = 0; i < kKept; ++i) {
      kept_.push_back(*RegisterOf(*other_, absl::StrCat("kept", i), 128 << 10));
      ASSERT_TRUE(FillOf(*other_, kept_.back(), static_cast<uint8_t>(i + 1)));
    }
  }
  void TearDown() override {
    if (daemon_ == nullptr) return;
    other_.reset();
    const ChildResult& ended = daemon_->End();
    EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  }

  // Twice what it has of memory.
  void ExpectTheOtherIsUndisturbed() {
    for (int i = 0; i < kKept; ++i) {
      EXPECT_TRUE(Holds(*other_, kept_[static_cast<size_t>(i)],
                        static_cast<uint8_t>(i + 1)))
          << i;
    }
  }
  // Whether all that is in use is the other's, by whatever book.
  bool IsAlone() {
    const auto status = daemon_->Status();
    if (!status.ok() || status->jobs.size() != 1) return false;
    const DaemonStatus::Job& job = status->jobs.front();
    if (job.name != "other" || job.processes != 1) return false;
    for (const DaemonStatus::Tier& tier : status->tiers) {
      int64_t of_job = 0;
      for (const DaemonStatus::TierBytes& its : job.tiers) {
        if (its.name == tier.name) of_job = its.used_bytes;
      }
      if (tier.used_bytes != of_job) return false;
    }
    // Its own connection, and the one that asks.
    return status->users.at(0).connections == 2;
  }
  // What it takes to make a process's memory.
  absl::Duration TimeToMake(int64_t bytes) {
    if (bytes == 0) return absl::ZeroDuration();
    const absl::Time begin = SystemClock().Now();
    EXPECT_TRUE(ConnectAs(*daemon_, bytes, "other").ok());
    const absl::Duration took = SystemClock().Now() - begin;
    EXPECT_TRUE(daemon_->WaitUntil([this] { return IsAlone(); }));
    return took;
  }
  // What the daemon has of shared memory, as the kernel counts it.
  int64_t SharedBytes() const {
    std::ifstream lines(absl::StrCat("/proc/", daemon_->pid(), "/status"));
    int64_t kilobytes = -1;
    for (std::string word; lines >> word;) {
      if (word == "RssShmem:" && lines >> kilobytes) break;
    }
    return kilobytes << 10;
  }

  static constexpr int kKept = 16;
  const TemporaryDirectory path_;
  std::unique_ptr<RunningDaemon> daemon_;
  std::unique_ptr<Runtime> other_;
  std::vector<TensorId> kept_;
};

TEST_P(KilledStates, AllIsGivenBackAtOnceAndOthersAreUndisturbed) {
  const absl::Duration making = TimeToMake(GetParam().made_bytes);
  constexpr int kRounds = 3;
  std::vector<absl::Duration> took;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t shared = SharedBytes();
    PlayedProcess process(
        [this](Stage& stage) { GetParam().play(*daemon_, stage); });
    ASSERT_TRUE(process.HasTold());
    const absl::Time killed = SystemClock().Now();
    process.Kill();
    bool is_alone = false;
    while (!is_alone && SystemClock().Now() < killed + absl::Seconds(30)) {
      is_alone = IsAlone();
    }
    took.push_back(SystemClock().Now() - killed);
    ASSERT_TRUE(is_alone);
    process.Reap();
    EXPECT_LE(SharedBytes(), shared + kMiB);
    ASSERT_NO_FATAL_FAILURE(ExpectTheOtherIsUndisturbed());
  }
  std::sort(took.begin(), took.end());
  std::printf("%s: %s to %s\n", GetParam().name,
              absl::FormatDuration(took.front()).c_str(),
              absl::FormatDuration(took.back()).c_str());
  // The least: a host's other work only adds to it.
  EXPECT_LE(took.front(), OnThisMachine(kAtOnce) + making);
}

INSTANTIATE_TEST_SUITE_P(
    Asks, KilledStates,
    testing::Values(KilledState{"AsksForMemory", &AsksForMemory, kMost},
                    KilledState{"Registers", &Registers},
                    KilledState{"FillsAPin", &FillsAPin},
                    KilledState{"HoldsPins", &HoldsPins},
                    KilledState{"WritesBack", &WritesBack},
                    KilledState{"Reads", &Reads},
                    KilledState{"WaitsForAGroup", &WaitsForAGroup},
                    KilledState{"WaitsForAQueue", &WaitsForAQueue},
                    KilledState{"Unregisters", &Unregisters},
                    KilledState{"Commits", &Commits},
                    KilledState{"Grows", &Grows, 3 * (kMost / 4)},
                    KilledState{"Closes", &Closes},
                    KilledState{"IsBeyondItsBudget", &IsBeyondItsBudget}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace terrace
