// Random transfers over a faulty engine against a plain map of bytes: every
// transfer ends once, a good end is the truth, a late one touches nothing
// that was given back.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aio/io_paths.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/aio/test_files.h"
#include "tests/support/fault_engine.h"
#include "tests/support/manual_clock.h"

namespace terrace {
namespace {

constexpr int64_t kBlock = 4096;
constexpr int64_t kRegion = 16 * kBlock;  // at most one transfer in each
constexpr int kRegions = 12;              // of each path
constexpr int kPaths = 2;

// What a path holds: a block's bytes, or nothing certain after a write that
// failed.
struct Medium {
  std::vector<std::byte> bytes =
      std::vector<std::byte>(kRegions * kRegion, std::byte{0});
  std::vector<bool> certain = std::vector<bool>(kRegions * 16, true);
};

struct Operation {
  int path = 0;
  int region = 0;
  IoTransfer transfer;
  std::unique_ptr<AlignedBuffer> buffer;  // a block more at either end
  std::vector<std::byte> written;
  int ends = 0;
  bool quarantined = false;
  bool released = false;
  bool finished = false;
  std::vector<std::byte> at_end;  // the whole buffer when it came back
};

class FaultsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string kind = GetParam();
    is_virtual_ = kind == "virtual_memory";
    made_ = MakeEngineUnderTest(is_virtual_ ? "paced_memory" : kind, kPaths,
                                kRegions * kRegion, clock());
    if (made_.engine == nullptr) GTEST_SKIP() << made_.reason_to_skip;
    io_ = std::make_unique<IoPaths>(
        MakeFaultEngine(std::move(made_.engine), plan_, clock()), clock());
    IoQueueOptions options;
    options.in_flight_bytes = 8 * kBlock;
    options.piece_bytes = 4 * kBlock;
    options.adapts = false;
    for (int i = 0; i < kPaths; ++i) {
      ASSERT_TRUE(
          io_->AddPath(absl::StrCat("path", i), made_.descriptors[i], options)
              .ok());
    }
  }

  Clock& clock() {
    return is_virtual_ ? static_cast<Clock&>(virtual_clock_) : SystemClock();
  }

  void Start(int path, int region, std::mt19937_64& random) {
    auto operation = std::make_unique<Operation>();
    const auto tag = static_cast<uint64_t>(operations_.size());
    operation->path = path;
    operation->region = region;
    const auto first = static_cast<int64_t>(random() % 16);
    const auto blocks = 1 + static_cast<int64_t>(random() % (16 - first));
    operation->buffer = std::make_unique<AlignedBuffer>((blocks + 2) * kBlock);
    operation->buffer->FillRandom(random());
    IoTransfer& transfer = operation->transfer;
    transfer.direction =
        random() % 2 == 0 ? IoDirection::kRead : IoDirection::kWrite;
    transfer.io_class = static_cast<IoClass>(random() % kIoClasses);
    transfer.data = operation->buffer->data() + kBlock;
    transfer.offset = region * kRegion + first * kBlock;
    transfer.size_bytes = blocks * kBlock;
    transfer.tag = tag;
    transfer.timeout = absl::Milliseconds(30);
    if (transfer.direction == IoDirection::kWrite) {
      operation->written = operation->buffer->Copy(kBlock, blocks * kBlock);
      Doubt(*operation);
    }
    operation->at_end =
        operation->buffer->Copy(0, operation->buffer->size_bytes());
    io_->Enqueue(path, transfer);
    if (random() % 16 == 0) io_->Cancel(path, tag);
    if (random() % 8 == 0) io_->Promote(path, tag, IoClass::kDemand);
    busy_[{path, region}] = true;
    operations_.push_back(std::move(operation));
  }

  void Doubt(const Operation& operation) {
    const IoTransfer& transfer = operation.transfer;
    for (int64_t at = 0; at < transfer.size_bytes; at += kBlock) {
      media_[operation.path].certain[(transfer.offset + at) / kBlock] = false;
    }
  }

  void End(const Completion& completion) {
    ASSERT_LT(completion.tag, operations_.size());
    Operation& operation = *operations_[completion.tag];
    ASSERT_EQ(completion.path, operation.path);
    ASSERT_FALSE(operation.finished) << "ended twice: " << completion.tag;
    if (completion.released) {
      ASSERT_TRUE(operation.quarantined);
      operation.released = true;
    } else {
      ASSERT_EQ(operation.ends++, 0) << "ended twice: " << completion.tag;
      operation.quarantined = completion.quarantined;
    }
    if (completion.quarantined) {
      ASSERT_EQ(completion.status.code(), absl::StatusCode::kDeadlineExceeded);
      return;  // its region stays busy, its buffer the kernel's
    }
    operation.finished = true;
    busy_[{operation.path, operation.region}] = false;
    const auto before = std::exchange(
        operation.at_end,
        operation.buffer->Copy(0, operation.buffer->size_bytes()));
    CheckEdges(operation, before);
    if (completion.status.ok()) Compare(operation);
  }

  // Nothing outside the transfer was touched.
  void CheckEdges(const Operation& operation,
                  const std::vector<std::byte>& before) {
    const auto size = static_cast<ptrdiff_t>(before.size());
    ASSERT_TRUE(std::equal(before.begin(), before.begin() + kBlock,
                           operation.at_end.begin()));
    ASSERT_TRUE(std::equal(before.begin() + size - kBlock, before.end(),
                           operation.at_end.begin() + size - kBlock));
  }

  void Compare(const Operation& operation) {
    const IoTransfer& transfer = operation.transfer;
    Medium& medium = media_[operation.path];
    for (int64_t at = 0; at < transfer.size_bytes; at += kBlock) {
      const int64_t offset = transfer.offset + at;
      std::byte* const truth = medium.bytes.data() + offset;
      if (transfer.direction == IoDirection::kWrite) {
        std::memcpy(truth, operation.written.data() + at, kBlock);
        medium.certain[offset / kBlock] = true;
      } else if (medium.certain[offset / kBlock]) {
        ASSERT_EQ(std::memcmp(truth, transfer.data + at, kBlock), 0)
            << "path " << operation.path << ", offset " << offset;
        ++compared_blocks_;
      }
    }
  }

  // Turns the crank once and lets time pass if nothing ended.
  void Turn() {
    std::vector<Completion> completions;
    io_->Poll(&completions);
    for (const Completion& completion : completions) End(completion);
    if (!completions.empty()) return;
    const absl::Time next = io_->NextEvent();
    if (!is_virtual_) {
      io_->Wait(std::min(next, clock().Now() + absl::Milliseconds(5)));
    } else if (next == absl::InfiniteFuture()) {
      plan_->Release();
    } else if (next > clock().Now()) {
      virtual_clock_.JumpTo(next);
    }
  }

  VirtualClock virtual_clock_;
  bool is_virtual_ = false;
  EngineUnderTest made_;
  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>(4711);
  std::vector<std::unique_ptr<Operation>> operations_;
  Medium media_[kPaths];
  std::map<std::pair<int, int>, bool> busy_;
  int64_t compared_blocks_ = 0;
  std::unique_ptr<IoPaths> io_;  // first to go: buffers outlive it
};

TEST_P(FaultsTest, EveryTransferEndsOnceAndAGoodEndIsTheTruth) {
  constexpr uint64_t kSeed = 20260;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  FaultChances chances;
  chances.error = 0.02;
  chances.again = 0.05;
  chances.no_space = 0.02;
  chances.short_transfer = 0.1;
  chances.delay = 0.05;
  chances.reorder = 0.1;
  chances.never = 0.01;
  chances.partial_submit = 0.05;
  plan_->SetChances(chances);
  constexpr size_t kOperations = 600;
  while (operations_.size() < kOperations && !HasFatalFailure()) {
    for (int tries = 0; tries < 3 && io_->pending() < 12; ++tries) {
      const int path = static_cast<int>(random() % kPaths);
      const int region = static_cast<int>(random() % kRegions);
      if (!busy_[{path, region}]) Start(path, region, random);
    }
    Turn();
    if (random() % 64 == 0) plan_->Release();
  }
  EXPECT_GT(plan_->faults(), 50);
  plan_->Clear();
  const absl::Time limit = clock().Now() + absl::Seconds(60);
  while (io_->pending() > 0 && !HasFatalFailure()) {
    ASSERT_LT(clock().Now(), limit);
    Turn();
  }
  int quarantined = 0;
  for (const auto& operation : operations_) {
    ASSERT_EQ(operation->ends, 1);
    ASSERT_EQ(operation->quarantined, operation->released);
    quarantined += operation->quarantined ? 1 : 0;
    ASSERT_EQ(operation->buffer->Copy(0, operation->buffer->size_bytes()),
              operation->at_end)
        << "touched after it was given back";
  }
  EXPECT_GT(compared_blocks_, 100);
  for (int path = 0; path < kPaths; ++path) {
    EXPECT_EQ(io_->stats(path).in_flight_bytes, 0);
    EXPECT_EQ(io_->stats(path).quarantined_bytes, 0);
    EXPECT_GT(io_->stats(path).continuations, 0);
    EXPECT_GT(io_->stats(path).retries, 0);
  }
  RecordProperty("quarantined", quarantined);
}

TEST_P(FaultsTest, EachCallInTurnFailsByItself) {
  AlignedBuffer buffer(kRegion);
  buffer.FillRandom(5);
  int64_t n = 1;
  for (;; ++n) {
    plan_->Clear();
    plan_->FailCall(n, {FaultKind::kError, ENOSPC, absl::ZeroDuration()});
    const auto tag = static_cast<uint64_t>(n);
    io_->Enqueue(0, {IoDirection::kWrite, IoClass::kWriteBack, buffer.data(), 0,
                     kRegion, tag});
    std::vector<Completion> ended;
    while (ended.empty()) {
      io_->Poll(&ended);
      if (ended.empty() && is_virtual_) {
        if (io_->NextEvent() > clock().Now()) {
          virtual_clock_.JumpTo(io_->NextEvent());
        }
      } else if (ended.empty()) {
        io_->Wait(absl::InfiniteFuture());
      }
    }
    ASSERT_EQ(ended.size(), 1u);
    ASSERT_EQ(io_->pending(), 0);
    if (plan_->faults() == 0) {
      EXPECT_TRUE(ended[0].status.ok()) << ended[0].status;
      break;
    }
    EXPECT_EQ(ended[0].status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(ended[0].status.message()),
                testing::HasSubstr(absl::StrCat("write failed: path0, offset ",
                                                (n - 1) * 4 * kBlock,
                                                ", 16384 bytes: "
                                                "ENOSPC")));
  }
  EXPECT_EQ(n, 5);  // four pieces, then a run without a fault
}

// Every kind, at each call in turn, of a read and of a write.
TEST_P(FaultsTest, AnyFaultOfAnyCallEndsATransferExactlyOnce) {
  const FaultKind kinds[] = {FaultKind::kError,   FaultKind::kErrorAfter,
                             FaultKind::kShort,   FaultKind::kZero,
                             FaultKind::kDelay,   FaultKind::kReorder,
                             FaultKind::kBitFlip, FaultKind::kPartialSubmit};
  AlignedBuffer buffer(kRegion);
  uint64_t tag = 0;
  for (const FaultKind kind : kinds) {
    for (int64_t n = 1; n <= 6; ++n) {  // four pieces and what follows them
      const IoDirection direction =
          n % 2 == 0 ? IoDirection::kRead : IoDirection::kWrite;
      SCOPED_TRACE(
          absl::StrCat("fault ", static_cast<int>(kind), " of call ", n));
      plan_->Clear();
      plan_->FailCall(n, {kind, EIO, absl::Milliseconds(1)});
      io_->Enqueue(
          0, {direction, IoClass::kDemand, buffer.data(), 0, kRegion, ++tag});
      std::vector<Completion> ended;
      while (io_->pending() > 0) {
        io_->Poll(&ended);
        if (io_->pending() == 0) break;
        if (!is_virtual_) {
          io_->Wait(std::min(io_->NextEvent(),
                             clock().Now() + absl::Milliseconds(5)));
        } else if (io_->NextEvent() > clock().Now()) {
          ASSERT_NE(io_->NextEvent(), absl::InfiniteFuture());
          virtual_clock_.JumpTo(io_->NextEvent());
        }
      }
      io_->Poll(&ended);
      ASSERT_EQ(ended.size(), 1u);
      EXPECT_EQ(ended[0].tag, tag);
      EXPECT_FALSE(ended[0].quarantined || ended[0].released);
    }
  }
}

TEST_P(FaultsTest, AFlippedBitPassesUnnoticedSoThatChecksumsMustSeeIt) {
  AlignedBuffer buffer(3 * kBlock);
  buffer.FillRandom(9);
  const auto original = buffer.Copy(0, 3 * kBlock);
  plan_->FailCall(1, {FaultKind::kBitFlip}, CallFilter::kWrites);
  plan_->FailCall(2, {FaultKind::kBitFlip}, CallFilter::kReads);
  const IoDirection directions[] = {IoDirection::kWrite, IoDirection::kRead,
                                    IoDirection::kRead};
  for (int i = 0; i < 3; ++i) {
    io_->Enqueue(0, {directions[i], IoClass::kDemand,
                     buffer.data() + i * kBlock, 0, kBlock, 1});
    std::vector<Completion> ended;
    while (ended.empty()) {
      io_->Poll(&ended);
      if (!ended.empty()) break;
      if (is_virtual_) {
        virtual_clock_.JumpTo(std::max(io_->NextEvent(), clock().Now()));
      } else {
        io_->Wait(absl::InfiniteFuture());
      }
    }
    EXPECT_TRUE(ended[0].status.ok());
  }
  const auto differing_bits = [&](const std::byte* a, const std::byte* b) {
    int bits = 0;
    for (int64_t i = 0; i < kBlock; ++i) {
      bits += std::popcount(static_cast<unsigned>(a[i] ^ b[i]));
    }
    return bits;
  };
  EXPECT_EQ(differing_bits(original.data(), buffer.data()), 0);
  EXPECT_EQ(differing_bits(original.data(), buffer.data() + kBlock), 1);
  // Another bit of the same bytes, or the same one back.
  EXPECT_EQ(differing_bits(buffer.data() + kBlock, buffer.data() + 2 * kBlock),
            1);
}

INSTANTIATE_TEST_SUITE_P(Engines, FaultsTest,
                         testing::Values("io_uring", "threads", "memory",
                                         "paced_memory", "virtual_memory"),
                         [](const auto& kind) {
                           return std::string(kind.param);
                         });

}  // namespace
}  // namespace terrace
