#include "tests/support/accelerator/pinned_pages.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/accelerator/device/fault_exit.h"
#include "tests/support/accelerator/accelerator_memory.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PinnedMemoryTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 10000;  // three pages

  volatile char* At(uintptr_t address) {
    return reinterpret_cast<volatile char*>(address);
  }
  // A task that reads the block, or fills it.
  void Copy(uintptr_t block, bool is_write) {
    const Touch touch{{block, block + kBytes}, is_write};
    streams_.Submit(stream_, "copy", {touch},
                    [at = pinned_.Twin(block), is_write] {
                      for (size_t byte = 0; is_write && byte < kBytes; ++byte) {
                        at[byte] = std::byte{5};
                      }
                    });
    pinned_.NoteUse(touch, stream_);
  }
  std::vector<std::string> reports() {
    pinned_.NoteFaults();
    return streams_.reports();
  }
  void Wait() {
    streams_.Wait(streams_.Record(stream_));
    pinned_.OpenWaited();
  }

  DeviceStreams streams_;
  const AcceleratorStream stream_ = streams_.Add("stream");
  PinnedPages pinned_{streams_, size_t{1} << 20};
};

TEST_F(PinnedMemoryTest, AReadBeforeTheWaitIsReportedAndGoesOn) {
  const uintptr_t block = *pinned_.Allocate(kBytes);
  Copy(block, /*is_write=*/true);
  streams_.WaitUnseen(streams_.Record(stream_).task);  // no race would show
  EXPECT_EQ(*At(block + 5000), 5);
  EXPECT_THAT(
      reports(),
      ElementsAre(AllOf(HasSubstr("the CPU uses 4096 bytes"),
                        HasSubstr("has not waited for stream, which writes"))));
}

TEST_F(PinnedMemoryTest, AReadAfterTheWaitIsNot) {
  const uintptr_t block = *pinned_.Allocate(kBytes);
  Copy(block, /*is_write=*/true);
  Wait();
  EXPECT_EQ(*At(block + 9999), 5);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(PinnedMemoryTest, WhatACopyReadsMayBeReadAndNotWritten) {
  const uintptr_t block = *pinned_.Allocate(kBytes);
  *At(block) = 3;
  Copy(block, /*is_write=*/false);
  EXPECT_EQ(*At(block), 3);
  EXPECT_THAT(reports(), IsEmpty());
  *At(block) = 4;
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("the CPU writes 4096 bytes")));
  EXPECT_EQ(*At(block), 4);
}

TEST_F(PinnedMemoryTest, AFreedBlockIsGivenAgainOnceItsCopiesAreOver) {
  streams_.SetDelays(/*seed=*/1, /*longest=*/1 << 20);
  const uintptr_t block = *pinned_.Allocate(kBytes);
  Copy(block, /*is_write=*/true);
  pinned_.Free(block);
  EXPECT_NE(*pinned_.Allocate(kBytes), block);
  streams_.WaitUnseen(streams_.Record(stream_).task);
  ASSERT_EQ(*pinned_.Allocate(kBytes), block);
  *At(block) = 1;
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(PinnedMemoryTest, RegisteredMemoryIsPinnedWhereItIs) {
  std::vector<char> bytes(100);
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  EXPECT_FALSE(pinned_.IsPinned(begin));
  pinned_.Register({begin, begin + bytes.size()});
  EXPECT_TRUE(pinned_.IsPinned(begin + 99));
  EXPECT_FALSE(pinned_.IsPinned(begin + 100));
  EXPECT_EQ(pinned_.Twin(begin), reinterpret_cast<std::byte*>(bytes.data()));
  EXPECT_TRUE(pinned_.Unregister(begin));
  EXPECT_FALSE(pinned_.IsPinned(begin));
}

TEST_F(PinnedMemoryTest, AnotherFaultKillsAsEver) {
  AcceleratorMemory memory(streams_, size_t{1} << 20, size_t{1} << 20);
  const uintptr_t device = *memory.Allocate(kBytes, stream_);
  EXPECT_EXIT(*At(device) = 1, EndsByFault, "");
  EXPECT_EXIT(static_cast<void>(*At(device)), EndsByFault, "");
  *memory.Twin(device) = std::byte{1};
}

}  // namespace
}  // namespace terrace
