// The engines of production on a file system that fails: what the kernel
// really answers then, and what becomes of it.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "aio/io_paths.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/aio/test_files.h"
#include "tests/support/fuse/fuse_mount.h"

namespace terrace {
namespace {

using Kind = FuseFault::Kind;
using testing::HasSubstr;

constexpr int64_t kBlock = 4096;
constexpr int64_t kFileBytes = 256 * kBlock;  // one request of the kernel's

class FuseTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!mount_.ok()) GTEST_SKIP() << mount_.reason();
    auto engine = std::string(GetParam()) == "threads"
                      ? MakeEngine(EngineKind::kThreads)
                      : MakeRingOfKind(GetParam());
    if (!engine.ok()) GTEST_SKIP() << engine.status();
    name_ = mount_.path() + "/state";
    fd_ = open(name_.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    ASSERT_GE(fd_, 0) << std::strerror(errno);
    buffer_.FillRandom(71);
    content_ = buffer_.Copy(0, kFileBytes);
    ASSERT_EQ(pwrite(fd_, buffer_.data(), kFileBytes, 0), kFileBytes);
    buffer_.Fill(0);
    io_ = std::make_unique<IoPaths>(*std::move(engine), SystemClock());
    IoQueueOptions options;
    options.adapts = false;
    path_ = *io_->AddPath(name_, fd_, options);
    mount_.Clear();
  }
  void TearDown() override {
    if (io_ == nullptr) return;
    mount_.Kill();  // what still waits ends now
    Drain(0);
    io_.reset();
    close(fd_);
  }

  void Start(IoDirection direction, uint64_t tag = 1,
             absl::Duration timeout = absl::Seconds(30)) {
    io_->Enqueue(path_, {direction, IoClass::kDemand, buffer_.data(), 0,
                         kFileBytes, tag, timeout});
  }
  // Until `ends` completions are there, or nothing is pending; all of them.
  std::vector<Completion> Drain(size_t ends) {
    std::vector<Completion> all;
    const absl::Time limit = SystemClock().Now() + absl::Seconds(60);
    io_->Poll(&all);
    while (io_->pending() > 0 && (ends == 0 || all.size() < ends)) {
      if (SystemClock().Now() > limit) {
        ADD_FAILURE() << io_->pending() << " never ended";
        break;
      }
      io_->Wait(std::min(io_->NextEvent(), limit));
      io_->Poll(&all);
    }
    return all;
  }
  Completion EndOf(IoDirection direction) {
    Start(direction);
    const std::vector<Completion> all = Drain(1);
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? Completion{} : all[0];
  }
  bool BufferHoldsTheFile() const {
    return buffer_.Copy(0, kFileBytes) == content_;
  }
  // By another descriptor and plain system calls.
  std::vector<std::byte> FileNow() const {
    std::vector<std::byte> bytes(kFileBytes);
    const int fd = open(name_.c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(pread(fd, bytes.data(), bytes.size(), 0), kFileBytes);
    close(fd);
    return bytes;
  }

  FuseMount mount_;
  std::string name_;
  int fd_ = -1;
  AlignedBuffer buffer_{kFileBytes};
  std::vector<std::byte> content_;
  std::unique_ptr<IoPaths> io_;
  int path_ = 0;
};
INSTANTIATE_TEST_SUITE_P(
    Engines, FuseTest, testing::Values("io_uring", "io_uring_bare", "threads"),
    [](const auto& kind) { return std::string(kind.param); });

TEST_P(FuseTest, AReadThatFailsOnceIsHealed) {
  mount_.Arm({FuseCall::kRead, 1, 1, Kind::kError, EIO});
  const Completion ended = EndOf(IoDirection::kRead);
  EXPECT_TRUE(ended.status.ok()) << ended.status;
  EXPECT_TRUE(BufferHoldsTheFile());
  EXPECT_EQ(mount_.counts().faults, 1);
  EXPECT_EQ(io_->stats(path_).retries, 1);
}

TEST_P(FuseTest, AReadThatKeepsFailingIsDataLossThatNamesThePlace) {
  mount_.Arm({.call = FuseCall::kRead, .kind = Kind::kError, .value = EIO});
  const Completion ended = EndOf(IoDirection::kRead);
  EXPECT_EQ(ended.status.code(), absl::StatusCode::kDataLoss) << ended.status;
  EXPECT_THAT(std::string(ended.status.message()),
              testing::AllOf(HasSubstr(name_), HasSubstr("offset 0"),
                             HasSubstr("EIO")));
  EXPECT_EQ(io_->stats(path_).retries, 2);
  mount_.Clear();
  EXPECT_TRUE(EndOf(IoDirection::kRead).status.ok()) << "it goes on after it";
  EXPECT_TRUE(BufferHoldsTheFile());
}

TEST_P(FuseTest, AWriteThatFailsIsToldAtOnce) {
  const struct {
    int error;
    absl::StatusCode code;
    const char* name;
  } cases[] = {
      {EIO, absl::StatusCode::kUnavailable, "EIO"},
      {ENOSPC, absl::StatusCode::kResourceExhausted, "ENOSPC"},
      {EDQUOT, absl::StatusCode::kResourceExhausted, "EDQUOT"},
      {EROFS, absl::StatusCode::kUnavailable, "EROFS"},
  };
  for (const auto& expected : cases) {
    mount_.Clear();
    mount_.Arm({FuseCall::kWrite, 1, 1, Kind::kError, expected.error});
    const Completion ended = EndOf(IoDirection::kWrite);
    EXPECT_EQ(ended.status.code(), expected.code) << ended.status;
    EXPECT_THAT(std::string(ended.status.message()), HasSubstr(expected.name));
    EXPECT_EQ(FileNow(), content_) << "nothing of it was stored";
  }
  EXPECT_EQ(io_->stats(path_).retries, 0);
}

TEST_P(FuseTest, ShortTransfersAreContinuedToTheLastByte) {
  // Of whole blocks, and of blocks and a half, which are moved again.
  for (const int64_t bytes : {3 * kBlock, 5 * kBlock + 512}) {
    mount_.Clear();
    mount_.Arm({FuseCall::kRead, 1, 20, Kind::kShort, bytes});
    mount_.Arm({FuseCall::kWrite, 1, 20, Kind::kShort, bytes});
    buffer_.Fill(0);
    const Completion read = EndOf(IoDirection::kRead);
    EXPECT_TRUE(read.status.ok()) << read.status;
    EXPECT_TRUE(BufferHoldsTheFile());
    buffer_.FillRandom(static_cast<uint64_t>(bytes));
    const Completion written = EndOf(IoDirection::kWrite);
    EXPECT_TRUE(written.status.ok()) << written.status;
    content_ = buffer_.Copy(0, kFileBytes);
    EXPECT_EQ(mount_.counts().faults, 40);
    EXPECT_EQ(FileNow(), content_);
  }
  // Of the 80 short answers the kernel goes on after some by itself.
  EXPECT_GT(io_->stats(path_).continuations, 10);
}

TEST_P(FuseTest, AFileThatEndsTooSoonIsDataLoss) {
  ASSERT_EQ(ftruncate(fd_, 100 * kBlock), 0);
  const Completion ended = EndOf(IoDirection::kRead);
  EXPECT_EQ(ended.status.code(), absl::StatusCode::kDataLoss) << ended.status;
  EXPECT_THAT(std::string(ended.status.message()),
              HasSubstr("unexpected end of file"));
}

TEST_P(FuseTest, AnInterruptedCallIsRepeated) {
  for (const int error : {EAGAIN, EINTR}) {
    mount_.Clear();
    mount_.Arm({FuseCall::kRead, 1, 3, Kind::kError, error});
    buffer_.Fill(0);
    const Completion ended = EndOf(IoDirection::kRead);
    EXPECT_TRUE(ended.status.ok()) << ended.status;
    EXPECT_TRUE(BufferHoldsTheFile());
  }
}

TEST_P(FuseTest, ALateAnswerIsStillTheTruth) {
  mount_.Arm({FuseCall::kRead, 1, 1, Kind::kDelay, 150});
  const absl::Time start = SystemClock().Now();
  const Completion ended = EndOf(IoDirection::kRead);
  EXPECT_GE(SystemClock().Now() - start, absl::Milliseconds(150));
  EXPECT_TRUE(ended.status.ok()) << ended.status;
  EXPECT_TRUE(BufferHoldsTheFile());
}

// What the kernel has is quarantined until the server goes on; only then does
// the buffer come back, with the bytes in it.
TEST_P(FuseTest, WhatStopsAnsweringIsToldInTimeAndGivenBackLater) {
  mount_.Stop();
  const absl::Time start = SystemClock().Now();
  Start(IoDirection::kRead, 7, absl::Milliseconds(100));
  const std::vector<Completion> told = Drain(1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].tag, 7u);
  EXPECT_EQ(told[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(told[0].quarantined);
  EXPECT_THAT(std::string(told[0].status.message()),
              testing::AllOf(HasSubstr(name_), HasSubstr("no answer for "),
                             HasSubstr("1048576 bytes in flight")));
  EXPECT_GE(SystemClock().Now() - start, absl::Milliseconds(100));
  EXPECT_EQ(io_->stats(path_).quarantined_bytes, kFileBytes);
  mount_.Continue();
  const std::vector<Completion> released = Drain(1);
  ASSERT_EQ(released.size(), 1u);
  EXPECT_TRUE(released[0].released);
  EXPECT_EQ(released[0].tag, 7u);
  EXPECT_TRUE(BufferHoldsTheFile());
  EXPECT_EQ(io_->stats(path_).quarantined_bytes, 0);
}

TEST_P(FuseTest, AServerThatDiesEndsEveryTransferOnce) {
  mount_.Arm({.call = FuseCall::kRead, .kind = Kind::kHold});
  mount_.Arm({.call = FuseCall::kWrite, .kind = Kind::kHold});
  for (uint64_t tag = 0; tag < 8; ++tag) {
    io_->Enqueue(path_,
                 {tag % 2 == 0 ? IoDirection::kRead : IoDirection::kWrite,
                  IoClass::kDemand,
                  buffer_.data() + static_cast<int64_t>(tag) * 32 * kBlock,
                  static_cast<int64_t>(tag) * 32 * kBlock, 32 * kBlock, tag});
  }
  std::vector<Completion> none;
  io_->Poll(&none);
  EXPECT_TRUE(none.empty());
  mount_.Kill();
  std::vector<int> ends(8);
  for (const Completion& completion : Drain(0)) {
    ++ends[completion.tag];
    EXPECT_EQ(completion.status.code(), absl::StatusCode::kUnavailable)
        << completion.status;
  }
  EXPECT_EQ(ends, std::vector<int>(8, 1));
}

// Faults of all kinds together: a transfer that ends well has told the truth.
TEST_P(FuseTest, AGoodEndIsTheTruthWhateverElseFails) {
  constexpr uint64_t kSeed = 90210;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  constexpr int64_t kPart = kFileBytes / 8;
  const FuseFault kinds[] = {
      {FuseCall::kRead, 1, 1, Kind::kError, EIO},
      {FuseCall::kRead, 1, 1, Kind::kError, ENOMEM},
      {FuseCall::kRead, 1, 1, Kind::kShort, kBlock},
      {FuseCall::kRead, 1, 1, Kind::kDelay, 2},
      {FuseCall::kWrite, 1, 1, Kind::kError, ENOSPC},
      {FuseCall::kWrite, 1, 1, Kind::kShort, 2 * kBlock + 512},
      {FuseCall::kWrite, 1, 1, Kind::kDelay, 2},
  };
  std::vector<std::byte> truth = content_;
  int failed = 0;
  for (int round = 0; round < 60; ++round) {
    for (int i = 0; i < 3; ++i) {
      FuseFault fault = kinds[random() % std::size(kinds)];
      fault.first = 1 + static_cast<int64_t>(random() % 4);
      mount_.Arm(fault);
    }
    buffer_.FillRandom(random());
    const std::vector<std::byte> given = buffer_.Copy(0, kFileBytes);
    bool writes[8];
    for (uint64_t part = 0; part < 8; ++part) {
      writes[part] = random() % 2 == 0;
      const int64_t at = static_cast<int64_t>(part) * kPart;
      io_->Enqueue(path_,
                   {writes[part] ? IoDirection::kWrite : IoDirection::kRead,
                    IoClass::kDemand, buffer_.data() + at, at, kPart, part,
                    absl::Seconds(30)});
    }
    const std::vector<Completion> ended = Drain(0);
    ASSERT_EQ(ended.size(), 8u);
    mount_.Clear();
    const std::vector<std::byte> stored = FileNow();
    for (const Completion& completion : ended) {
      const auto from = static_cast<ptrdiff_t>(completion.tag) * kPart;
      const auto part_of = [from](const std::vector<std::byte>& bytes) {
        return std::vector<std::byte>(bytes.begin() + from,
                                      bytes.begin() + from + kPart);
      };
      if (!completion.status.ok()) {
        ++failed;
      } else if (writes[completion.tag]) {
        ASSERT_EQ(part_of(stored), part_of(given)) << "round " << round;
      } else {
        ASSERT_EQ(buffer_.Copy(from, kPart), part_of(truth))
            << "round " << round;
      }
      if (!writes[completion.tag]) {
        ASSERT_EQ(part_of(stored), part_of(truth)) << "a read changed it";
      }
    }
    truth = stored;
  }
  EXPECT_GT(failed, 5);
}

}  // namespace
}  // namespace terrace
