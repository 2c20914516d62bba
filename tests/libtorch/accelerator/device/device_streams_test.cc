// A missing wait of each kind is reported though nothing delays the streams,
// and correct programs of any order are not.
#include "tests/support/accelerator/device_streams.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/accelerator/accelerator_memory.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kBytes = 512;

// Two streams of one device, which do at once what they are given.
class DeviceStreamsTest : public testing::Test {
 protected:
  DeviceStreamsTest() : memory_(streams_, size_t{1} << 20, size_t{1} << 20) {
    memory_.AddStream(home_);
    memory_.AddStream(side_);
  }
  ~DeviceStreamsTest() override { streams_.Stop(); }  // they use the memory

  uintptr_t Allocate() { return *memory_.Allocate(kBytes, home_); }
  void Fill(AcceleratorStream stream, uintptr_t address, int value) {
    streams_.Submit(stream, "fill", {{{address, address + kBytes}, true}},
                    [at = memory_.Twin(address), value] {
                      *reinterpret_cast<int*>(at) = value;
                    });
    Pass(stream);
  }
  void Read(AcceleratorStream stream, uintptr_t address) {
    streams_.Submit(stream, "read", {{{address, address + kBytes}, false}},
                    [this, at = memory_.Twin(address)] {
                      seen_ = *reinterpret_cast<const int*>(at);
                    });
    Pass(stream);
  }
  // Time passes: no race would show.
  void Pass(AcceleratorStream stream) {
    streams_.WaitUnseen(streams_.RecordUnseen(stream).task);
  }
  void Order(AcceleratorStream before, AcceleratorStream after) {
    streams_.Await(after, streams_.Record(before));
  }

  DeviceStreams streams_;
  const AcceleratorStream home_ = streams_.Add("home");
  const AcceleratorStream side_ = streams_.Add("side");
  AcceleratorMemory memory_;
  int seen_ = 0;
};

TEST_F(DeviceStreamsTest, AMissingEventBetweenStreamsIsReported) {
  const uintptr_t block = Allocate();
  Fill(home_, block, 1);
  Read(side_, block);
  EXPECT_EQ(seen_, 1);
  EXPECT_THAT(
      streams_.reports(),
      ElementsAre(AllOf(HasSubstr("read on side reads 512 bytes"),
                        HasSubstr("not ordered after fill on home, which "
                                  "writes it"))));
  streams_.ClearReports();
  Order(home_, side_);
  Read(side_, block);
  EXPECT_THAT(streams_.reports(), IsEmpty());
}

TEST_F(DeviceStreamsTest, AWriteAfterAnothersReadIsReported) {
  const uintptr_t block = Allocate();
  Fill(home_, block, 1);
  Order(home_, side_);
  Read(side_, block);
  Fill(home_, block, 2);
  EXPECT_THAT(streams_.reports(),
              ElementsAre(HasSubstr("after read on side, which reads it")));
}

TEST_F(DeviceStreamsTest, AFreeWithoutTheStreamRecordedIsReportedAtTheReuse) {
  const uintptr_t block = Allocate();
  Fill(home_, block, 1);
  Order(home_, side_);
  Read(side_, block);
  memory_.Free(block);
  EXPECT_EQ(Allocate(), block);
  EXPECT_THAT(streams_.reports(), IsEmpty());
  Fill(home_, block, 2);
  EXPECT_THAT(streams_.reports(),
              ElementsAre(AllOf(HasSubstr("after read on side"),
                                HasSubstr("freed without"))));
}

TEST_F(DeviceStreamsTest, ARecordedStreamIsWaitedForBeforeTheReuse) {
  const uintptr_t block = Allocate();
  Fill(home_, block, 1);
  Order(home_, side_);
  Read(side_, block);
  memory_.RecordUse(block, side_);
  memory_.Free(block);
  const uintptr_t next = Allocate();
  EXPECT_EQ(next, block);  // all is over
  Fill(home_, next, 2);
  EXPECT_THAT(streams_.reports(), IsEmpty());
}

TEST_F(DeviceStreamsTest, ACopyThatDoesNotWaitForTheAllocationIsReported) {
  const uintptr_t before = Allocate();
  Fill(home_, before, 1);
  const uintptr_t block = Allocate();  // memory that nobody has had
  Fill(side_, block, 2);
  EXPECT_THAT(streams_.reports(),
              ElementsAre(HasSubstr("after the block's allocation on home")));
  streams_.ClearReports();
  const uintptr_t next = Allocate();
  Order(home_, side_);
  Fill(side_, next, 2);
  EXPECT_THAT(streams_.reports(), IsEmpty());
}

TEST_F(DeviceStreamsTest, TheCpuHasToWait) {
  const uintptr_t block = Allocate();
  const Touch read{{block, block + kBytes}, false};
  Fill(home_, block, 1);
  EXPECT_FALSE(streams_.NoteCpuUse(read, "a test"));
  EXPECT_THAT(streams_.reports(),
              ElementsAre(HasSubstr("a test reads 512 bytes")));
  streams_.Wait(streams_.Record(home_));
  EXPECT_TRUE(streams_.NoteCpuUse(read, "a test"));
  // What the CPU has waited for is over for whatever it gives next.
  Fill(side_, block, 2);
  EXPECT_EQ(streams_.report_count(), 1);
}

TEST_F(DeviceStreamsTest, AnAnsweredQuestionIsAWait) {
  const uintptr_t block = Allocate();
  Fill(home_, block, 1);
  ASSERT_TRUE(streams_.IsOver(streams_.Record(home_)));
  EXPECT_TRUE(streams_.NoteCpuUse({{block, block + kBytes}, false}, "a test"));
}

TEST_F(DeviceStreamsTest, AnEventOrdersWhatCameBeforeItAlone) {
  const uintptr_t block = Allocate();
  const StreamMark early = streams_.Record(home_);
  Fill(home_, block, 1);
  streams_.Await(side_, early);
  Read(side_, block);
  EXPECT_EQ(streams_.report_count(), 1);
}

TEST_F(DeviceStreamsTest, OrderPassesThroughAThirdStream) {
  const AcceleratorStream third = streams_.Add("third");
  const uintptr_t block = Allocate();
  Fill(home_, block, 1);
  Order(home_, third);
  Order(third, side_);
  Read(side_, block);
  EXPECT_THAT(streams_.reports(), IsEmpty());
}

TEST_F(DeviceStreamsTest, AFailedTaskComesOutOfTheNextWait) {
  streams_.Submit(home_, "divide", {},
                  [] { throw std::runtime_error("by zero"); });
  try {
    streams_.Wait(streams_.Record(home_));
    FAIL() << "nothing was thrown";
  } catch (const TaskError& error) {
    EXPECT_THAT(error.what(), HasSubstr("divide: by zero"));
  }
  streams_.Wait(streams_.Record(home_));
}

TEST_F(DeviceStreamsTest, EachCallCanBeMadeToFailOnce) {
  const auto run = [&] {
    const uintptr_t block = Allocate();
    Fill(home_, block, 1);
    Order(home_, side_);
    Fill(side_, block, 2);
    streams_.Wait(streams_.Record(side_));
    memory_.Free(block);
  };
  streams_.FailCall(0);
  run();
  const int64_t calls = streams_.calls();
  EXPECT_GE(calls, 6);
  for (int64_t call = 1; call <= calls; ++call) {
    streams_.FailCall(call);
    try {
      run();
      ADD_FAILURE() << "call " << call << " did not fail";
    } catch (const TaskError& error) {
      EXPECT_THAT(error.what(), HasSubstr("call " + std::to_string(call)));
    }
    run();
  }
  EXPECT_THAT(streams_.reports(), IsEmpty());
}

TEST_F(DeviceStreamsTest, AFullDeviceWaitsForItsStreamsAndThenHasNothing) {
  memory_.SetLimit(4 * kBytes);
  streams_.SetDelays(/*seed=*/3, /*longest=*/1 << 20);
  const auto whole = memory_.Allocate(4 * kBytes, home_);
  ASSERT_TRUE(whole);
  EXPECT_FALSE(memory_.Allocate(kBytes, home_));
  bool is_done = false;
  streams_.Submit(side_, "late", {}, [&is_done] { is_done = true; });
  memory_.RecordUse(*whole, side_);
  memory_.Free(*whole);
  const auto next = memory_.Allocate(kBytes, side_);
  ASSERT_TRUE(next);
  EXPECT_TRUE(is_done);
  EXPECT_EQ(memory_.stats().allocated_bytes, int64_t{kBytes});
}

// Values move between blocks on four streams; a plain array is the oracle. A
// stream waits for the last users of what it uses, with `is_right`; else for
// one in two, and nothing is computed.
class RandomProgram {
 public:
  RandomProgram(uint32_t seed, bool is_right)
      : random_(seed), is_right_(is_right) {
    streams_.SetDelays(seed, /*longest=*/12);
    for (size_t stream = 0; stream < kStreams; ++stream) {
      ids_.push_back(streams_.Add("stream " + std::to_string(stream)));
      memory_.AddStream(ids_.back());
    }
    for (size_t block = 0; block < kBlocks; ++block) Renew(block);
  }
  ~RandomProgram() { streams_.Stop(); }  // they use the memory

  void Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      const size_t target = random_() % kBlocks;
      const size_t source = random_() % kBlocks;
      if (random_() % 8 == 0) {
        End(target);
        Renew(target);
      } else if (target != source) {
        Add(target, source, random_() % kStreams);
      }
    }
  }
  bool IsEqual() {
    for (const AcceleratorStream id : ids_) streams_.Wait(streams_.Record(id));
    for (size_t block = 0; block < kBlocks; ++block) {
      if (*ValueOf(blocks_[block].address) != blocks_[block].expected) {
        return false;
      }
    }
    return true;
  }
  int64_t report_count() const { return streams_.report_count(); }

 private:
  static constexpr size_t kStreams = 4;
  static constexpr size_t kBlocks = 24;

  struct Block {
    uintptr_t address = 0;
    uint32_t expected = 0;
    std::vector<StreamMark> uses;
  };

  uint32_t* ValueOf(uintptr_t address) {
    return reinterpret_cast<uint32_t*>(memory_.Twin(address));
  }
  TaskQueues::Task Computed(TaskQueues::Task task) const {
    return is_right_ ? std::move(task) : [] {};
  }
  void Await(AcceleratorStream id, const Block& block) {
    for (const StreamMark& use : block.uses) {
      if (is_right_ || random_() % 2 == 0) streams_.Await(id, use);
    }
  }
  void Use(Block& block, AcceleratorStream id) {
    memory_.RecordUse(block.address, id);
    block.uses.push_back(streams_.Record(id));
    if (block.uses.size() > 8) block.uses.erase(block.uses.begin());
  }
  void End(size_t block) { memory_.Free(blocks_[block].address); }
  void Renew(size_t at) {
    Block& block = blocks_[at];
    const AcceleratorStream home = ids_[random_() % kStreams];
    block = Block{
        *memory_.Allocate(kBytes, home), static_cast<uint32_t>(random_()), {}};
    streams_.Submit(home, "fill",
                    {{{block.address, block.address + kBytes}, true}},
                    Computed([to = ValueOf(block.address),
                              value = block.expected] { *to = value; }));
    Use(block, home);
  }
  void Add(size_t to, size_t from, size_t stream) {
    Block& target = blocks_[to];
    Block& source = blocks_[from];
    const AcceleratorStream id = ids_[stream];
    Await(id, target);
    Await(id, source);
    streams_.Submit(
        id, "add",
        {{{target.address, target.address + kBytes}, true},
         {{source.address, source.address + kBytes}, false}},
        Computed([a = ValueOf(target.address), b = ValueOf(source.address)] {
          *a = 3 * *a + *b;
        }));
    target.expected = 3 * target.expected + source.expected;
    Use(target, id);
    Use(source, id);
  }

  std::mt19937 random_;
  const bool is_right_;
  DeviceStreams streams_;
  AcceleratorMemory memory_{streams_, size_t{1} << 24, size_t{1} << 24};
  std::vector<AcceleratorStream> ids_;
  std::vector<Block> blocks_{kBlocks};
};

TEST(RandomStreams, RightProgramsAreNeverReportedAndHaveTheirValues) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    RandomProgram program(seed, /*is_right=*/true);
    program.Run(/*steps=*/20000);
    EXPECT_TRUE(program.IsEqual());
    EXPECT_EQ(program.report_count(), 0);
  }
}

TEST(RandomStreams, WrongProgramsAreReported) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    RandomProgram program(seed, /*is_right=*/false);
    program.Run(/*steps=*/200);
    EXPECT_GT(program.report_count(), 0);
  }
}

}  // namespace
}  // namespace terrace
