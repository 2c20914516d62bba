// A path that hangs or is slow is nobody else's: the whole runtime over file
// systems of which some do not answer.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/fuse/fuse_mount.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {
namespace {

using Kind = FuseFault::Kind;
constexpr int64_t kTensorBytes = 1 << 20;
constexpr int kTensors = 24;  // for each path
// Of a path's window: more than a path has threads, or workers of a ring, and
// less than its tensors, so that not all of them stay in memory.
constexpr int kSlots = 8;
constexpr absl::Duration kTimeout = absl::Seconds(3);

// The tensors of one path, with a queue of their own. One thread.
class PathCustomer {
 public:
  explicit PathCustomer(Runtime& runtime) {
    auto queue = runtime.OpenQueue(kTensorBytes, kSlots, Late());
    EXPECT_TRUE(queue.ok()) << queue.status();
    if (queue.ok()) queue_ = *std::move(queue);
  }

  // A tensor and the pattern that it has.
  struct Owned {
    TensorId id;
    uint8_t seed;
  };
  void Add(const Owned& tensor) { tensors_.push_back(tensor); }
  int count() const { return static_cast<int>(tensors_.size()); }

  // The first `most` tensors at once, in groups of one; how many were had. What
  // failed is among the errors.
  int Take(Access access, int most) {
    return TakeOf({tensors_.data(), size_t(std::min(most, count()))}, access);
  }
  int ReadAll() { return Take(Access::kRead, count()); }
  // The same of tensors that need not be its own.
  int TakeOf(absl::Span<const Owned> tensors, Access access) {
    for (const Owned& tensor : tensors) {
      const absl::Status status =
          queue_->Push({{tensor.id, access}}, tensor.seed, Late());
      if (!status.ok()) errors_.push_back(status);
    }
    int had = 0;
    while (true) {
      absl::StatusOr<Ready> ready = queue_->Next(Late());
      if (absl::IsFailedPrecondition(ready.status())) return had;  // no more
      const absl::Status status =
          ready.ok() ? ready->pins.status() : ready.status();
      if (status.ok()) {
        ++had;
        Use(ready->pins->front(), access, static_cast<uint8_t>(ready->tag));
      } else {
        errors_.push_back(status);
      }
      if (!ready.ok()) return had;
    }
  }
  void Close() { queue_.reset(); }

  const std::vector<absl::Status>& errors() const { return errors_; }
  std::string Errors() const {
    return errors_.empty() ? "none" : errors_.front().ToString();
  }

 private:
  static absl::Time Late() { return absl::Now() + absl::Seconds(30); }

  static void Use(Pin& pin, Access access, uint8_t seed) {
    if (access == Access::kRead) {
      EXPECT_TRUE(HasPattern(pin.data(), seed));
    } else {
      WritePattern(pin.data(), seed);
    }
  }

  std::vector<Owned> tensors_;
  std::unique_ptr<RequestQueue> queue_;
  std::vector<absl::Status> errors_;
};

class PathsApart : public testing::TestWithParam<EngineKind> {
 protected:
  // The last path stays healthy.
  void Make(int paths) {
    Options options;
    // All windows at once, and nothing beside them.
    options.host_budget_bytes = paths * kSlots * (kTensorBytes + 4096);
    options.engine = GetParam();
    options.threads = 1;
    options.huge_pages = HugePages::kOff;
    options.prefetch = false;
    options.eviction = EvictionKind::kLru;  // what is read in turn is not kept
    options.io_timeout = kTimeout;
    for (int i = 0; i < paths; ++i) {
      mounts_.push_back(std::make_unique<FuseMount>());
      if (!mounts_[i]->ok()) GTEST_SKIP() << mounts_[i]->reason();
      options.paths.push_back(mounts_[i]->path());
    }
    auto runtime = Runtime::Create(options);
    if (absl::IsUnavailable(runtime.status())) {
      GTEST_SKIP() << runtime.status();
    }
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    Share(paths);
  }
  void TearDown() override {
    for (const auto& mount : mounts_) mount->Kill();
  }

  FuseMount& mount(int path) { return *mounts_[path]; }
  PathCustomer& customer(int path) { return *customers_[path]; }
  int healthy() const { return static_cast<int>(mounts_.size()) - 1; }
  TierState StateOf(int path) {
    return runtime_->GetStats().paths()[path].state;
  }
  bool Names(const absl::Status& status, int path) {
    return absl::StrContains(status.ToString(), mount(path).path());
  }

  std::vector<std::unique_ptr<FuseMount>> mounts_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<std::unique_ptr<PathCustomer>> customers_;

 private:
  // Tensors are written to whichever path suits: each is its customer's whose
  // path it is then read from.
  void Share(int paths) {
    for (int path = 0; path < paths; ++path) {
      customers_.push_back(std::make_unique<PathCustomer>(*runtime_));
    }
    std::vector<PathCustomer::Owned> tensors;
    for (int i = 0; i < paths * (kTensors + kSlots); ++i) {
      TensorSpec spec;
      spec.name = absl::StrCat("tensor ", i);
      spec.size_bytes = kTensorBytes;
      const auto tensor = runtime_->Register(spec);
      ASSERT_TRUE(tensor.ok()) << tensor.status();
      tensors.push_back({*tensor, static_cast<uint8_t>(i)});
    }
    // The last tensors, as many as the budget holds, are nobody's.
    const auto all = absl::MakeConstSpan(tensors);
    const size_t owned = static_cast<size_t>(paths * kTensors);
    ASSERT_EQ(customer(0).TakeOf(all.subspan(owned), Access::kOverwrite),
              paths * kSlots);
    std::vector<PathCustomer::Owned> unshared(tensors.begin(),
                                              tensors.begin() + owned);
    // A machine that was busy when the first were written has measured paths
    // that are equal as unequal. Those that nobody has are written again.
    const absl::Time late = absl::Now() + absl::Seconds(30);
    while (HasFew() && absl::Now() < late) {
      ASSERT_EQ(customer(0).TakeOf(unshared, Access::kOverwrite),
                static_cast<int>(unshared.size()));
      for (int round = 0; round < 2; ++round) {
        ASSERT_NO_FATAL_FAILURE(ShareByReads(&unshared));
      }
    }
    for (int path = 0; path < paths; ++path) {
      ASSERT_GE(customer(path).count(), kSlots) << path;
      ASSERT_EQ(customer(path).ReadAll(), customer(path).count());
    }
    // A customer that has few tensors would find them in memory.
    for (int path = 0; path < paths; ++path) {
      ASSERT_EQ(customer(path).TakeOf(all.subspan(owned), Access::kRead),
                paths * kSlots);
    }
  }
  bool HasFew() const {
    return std::any_of(customers_.begin(), customers_.end(),
                       [](const auto& one) { return one->count() < kSlots; });
  }
  // Reads each; those that stay in memory stay nobody's, and those of a path
  // that has enough.
  void ShareByReads(std::vector<PathCustomer::Owned>* unshared) {
    std::vector<PathCustomer::Owned> left;
    for (const PathCustomer::Owned& tensor : *unshared) {
      const Stats before = runtime_->GetStats();
      ASSERT_EQ(customer(0).TakeOf({&tensor, 1}, Access::kRead), 1);
      const Stats now = runtime_->GetStats();
      const size_t path = PathThatWasRead(before, now);
      if (path < customers_.size() && customers_[path]->count() < kTensors) {
        customers_[path]->Add(tensor);
      } else {
        left.push_back(tensor);
      }
    }
    *unshared = std::move(left);
  }
  static size_t PathThatWasRead(const Stats& before, const Stats& now) {
    size_t path = 0;
    while (path < now.paths().size() &&
           now.paths()[path].traffic.bytes_read ==
               before.paths()[path].traffic.bytes_read) {
      ++path;
    }
    return path;
  }
};
INSTANTIATE_TEST_SUITE_P(Engines, PathsApart,
                         testing::Values(EngineKind::kUring,
                                         EngineKind::kThreads),
                         [](const auto& kind) {
                           return kind.param == EngineKind::kUring ? "io_uring"
                                                                   : "threads";
                         });

TEST_P(PathsApart, OneThatHangsIsTheOnlyOneThatIsLate) {
  Make(2);
  if (IsSkipped()) return;
  mount(0).Stop();
  std::jthread waits([&] { customer(0).ReadAll(); });
  absl::SleepFor(absl::Milliseconds(500));
  const int64_t before = runtime_->GetStats().paths()[1].traffic.bytes_read;
  // Longer than the one that hangs is waited for.
  const absl::Time end = absl::Now() + 2 * kTimeout;
  int rounds = 0;
  for (; absl::Now() < end; ++rounds) {
    ASSERT_EQ(customer(1).ReadAll(), customer(1).count())
        << customer(1).Errors();
  }
  EXPECT_GT(rounds, 5);
  EXPECT_GT(runtime_->GetStats().paths()[1].traffic.bytes_read,
            before + rounds * kTensorBytes);
  // Others' use of the processors may make it slow, and no more than that.
  EXPECT_LE(StateOf(1), TierState::kSlow);
  waits.join();
  EXPECT_GE(customer(0).errors().size(), size_t{kSlots})
      << "few were asked for";
  for (const absl::Status& error : customer(0).errors()) {
    EXPECT_TRUE(Names(error, 0)) << error;
    EXPECT_FALSE(Names(error, 1)) << error;
  }
  EXPECT_FALSE(Names(runtime_->GetStats().first_error, 1));
}

TEST_P(PathsApart, TwoThatAreSlowSlowNoOther) {
  Make(3);
  if (IsSkipped()) return;
  for (const int path : {0, 1}) {
    mount(path).Arm({FuseCall::kRead, 1, INT64_MAX / 2, Kind::kDelay, 1000});
  }
  std::atomic<int> reading = 2;
  const auto read = [&](int path) {
    customer(path).ReadAll();
    --reading;
  };
  std::jthread first([&] { read(0); });
  std::jthread second([&] { read(1); });
  absl::SleepFor(absl::Milliseconds(300));
  // The third reads all that it has four times before one of them has once.
  int rounds = 0;
  for (; rounds < 4 && reading == 2; ++rounds) {
    ASSERT_EQ(customer(2).ReadAll(), customer(2).count());
  }
  EXPECT_EQ(rounds, 4);
  first.join();
  second.join();
  for (int path = 0; path < 3; ++path) {
    EXPECT_EQ(customer(path).Errors(), "none") << path;
  }
}

TEST_P(PathsApart, WritesThatHangHoldUpNoOthers) {
  Make(2);
  if (IsSkipped()) return;
  mount(0).Arm({FuseCall::kWrite, 1, INT64_MAX / 2, Kind::kHold, 0});
  EXPECT_GT(customer(0).Take(Access::kOverwrite, 2 * kSlots), 0);
  const absl::Time end = absl::Now() + 2 * kTimeout;
  while (absl::Now() < end) {
    ASSERT_EQ(customer(1).ReadAll(), customer(1).count())
        << customer(1).Errors();
  }
  EXPECT_LE(StateOf(1), TierState::kSlow);  // has the writes of both
  EXPECT_TRUE(runtime_->GetStats().paths()[1].write_error.ok());
  EXPECT_GT(mount(0).counts().faults, 0);
}

TEST_P(PathsApart, OneThatRecoversIsAsBefore) {
  Make(2);
  if (IsSkipped()) return;
  mount(0).Arm({FuseCall::kRead, 1, INT64_MAX / 2, Kind::kHold, 0});
  EXPECT_LT(customer(0).ReadAll(), customer(0).count());
  EXPECT_GT(runtime_->GetStats().host.quarantined_bytes, 0);
  mount(0).Clear();
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (runtime_->GetStats().host.quarantined_bytes > 0 && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  for (int round = 0; round < 2; ++round) {
    for (const int path : {0, 1}) {
      EXPECT_EQ(customer(path).ReadAll(), customer(path).count());
      EXPECT_EQ(customer(path).Take(Access::kOverwrite, kSlots), kSlots);
    }
  }
  for (const int path : {0, 1}) customer(path).Close();
  const absl::Status closed = runtime_->Close(absl::Now() + absl::Seconds(60));
  EXPECT_TRUE(closed.ok()) << closed;
}

TEST_P(PathsApart, ACloseNamesTheOneThatHangs) {
  Make(2);
  if (IsSkipped()) return;
  mount(0).Stop();
  EXPECT_LT(customer(0).ReadAll(), customer(0).count());
  EXPECT_EQ(customer(1).ReadAll(), customer(1).count());
  for (const int path : {0, 1}) customer(path).Close();
  const absl::Time start = absl::Now();
  const absl::Status closed =
      runtime_->Close(absl::Now() + absl::Milliseconds(500));
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(closed)) << closed;
  EXPECT_FALSE(Names(closed, 1)) << closed;
  runtime_.reset();
}

}  // namespace
}  // namespace terrace
