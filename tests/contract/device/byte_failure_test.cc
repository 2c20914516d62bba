// Queues of bytes at devices that fail, or are lost, and at several: an error
// is typed, what is read is what was last published, and nothing else is lost.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/contract/device/byte_device_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class FailingDeviceBytes : public DeviceByteQueues {
 protected:
  static constexpr size_t kTensors = 8;

  // Updates over more tensors than device and memory hold, and again once all
  // is well: what failed has not changed anything.
  void Work(const std::function<void()>& aim,
            const std::function<void()>& mend) {
    std::vector<TensorId> tensors = WrittenMany(kTensors);
    std::vector<uint8_t> seeds;
    for (uint8_t i = 0; i < kTensors; ++i) seeds.push_back(i);
    aim();
    for (size_t i = 0; i < 2 * kTensors; ++i) {
      const size_t which = (i * 5) % kTensors;
      absl::StatusOr<Pin> pin =
          Try(*queue_, tensors[which],
              i % 3 == 0 ? Access::kRead : Access::kUpdate);
      if (!pin.ok()) {
        EXPECT_TRUE(absl::IsUnavailable(pin.status()) ||
                    absl::IsResourceExhausted(pin.status()))
            << pin.status();
        continue;
      }
      EXPECT_TRUE(world().Has(*pin, seeds[which])) << i;
      if (i % 3 == 0) {
        pin->ReleaseUnchanged();
        continue;
      }
      seeds[which] = static_cast<uint8_t>(50 + i);
      world().Write(*pin, seeds[which]);
      pin->Release();
    }
    mend();
    ASSERT_TRUE(queue_->BeginStep(1).ok());  // what failed is tried again
    for (size_t i = 0; i < kTensors; ++i) {
      EXPECT_TRUE(Holds(*queue_, tensors[i], seeds[i])) << i;
    }
    queue_->CommitStep({1}).IgnoreError();
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, FailingDeviceBytes,
                         testing::Values(DeviceKind::kBytesVirtual),
                         DeviceParamName);

TEST_P(FailingDeviceBytes, EachCallOfTheDeviceFailsOnce) {
  for (int64_t call = 0; call < 48; ++call) {
    SCOPED_TRACE(absl::StrCat("call ", call));
    queue_.reset();
    Open(2, 4);
    Work(
        [&] {
          world().hbm().faults().Fail(call, absl::UnavailableError("not now"));
        },
        [&] { world().hbm().faults().Clear(); });
    if (HasFailure()) return;
  }
}

TEST_P(FailingDeviceBytes, EachCallOfTheDiskFailsOnce) {
  for (int64_t call = 0; call < 48; ++call) {
    SCOPED_TRACE(absl::StrCat("call ", call));
    queue_.reset();
    Open(2, 4);
    Work(
        [&] {
          world().faults().FailCall(call + 1, {.kind = FaultKind::kError});
        },
        [&] { world().faults().Clear(); });
    if (HasFailure()) return;
  }
}

class LostDeviceBytes : public DeviceByteQueues {};

INSTANTIATE_TEST_SUITE_P(Devices, LostDeviceBytes,
                         testing::Values(DeviceKind::kFakeVirtual,
                                         DeviceKind::kFakeThreads),
                         DeviceParamName);

TEST_P(LostDeviceBytes, GroupsAndNewQueuesAreUnavailableAndOthersKeepTheirs) {
  Open(4, 16);
  const auto memory = OpenAt("", 4);
  const TensorId tensor = Written("a", 1);
  const TensorId only = Written("only", 2);
  ASSERT_TRUE(Holds(*memory, tensor, 1));
  ASSERT_TRUE(device()->Break("CUDA error 719"));
  const absl::Status refused = Try(*queue_, tensor, Access::kRead).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("CUDA error 719"));
  const absl::Status opened = runtime().OpenBytes(kPlace, kHbm).status();
  EXPECT_TRUE(absl::IsUnavailable(opened)) << opened;
  EXPECT_THAT(Message(opened), HasSubstr("CUDA error 719"));
  EXPECT_TRUE(Holds(*memory, tensor, 1));
  EXPECT_TRUE(absl::IsDataLoss(Try(*memory, only, Access::kRead).status()));
}

// Two devices above two memories, and tensors that are wanted at each in turn.
TEST(SeveralDevicesBytes, NewestContentsComeToWhicheverAsks) {
  constexpr int64_t kBytes = 4096;
  constexpr int64_t kRoom = 2 * kBytes;
  TestRuntime world(TestWorld::kHbmsVirtual, {.budget_bytes = 6 * kRoom,
                                              .hbm_bytes = 3 * kRoom,
                                              .node_bytes = 3 * kRoom});
  std::vector<std::unique_ptr<ByteQueue>> queues;
  for (const char* const tier : {"hbm:0", "hbm:1", "dram:1", ""}) {
    auto queue = world.runtime().OpenBytes(2 * kRoom, tier);
    ASSERT_TRUE(queue.ok()) << queue.status();
    queues.push_back(*std::move(queue));
  }
  const std::vector<TensorId> tensors = world.RegisterMany(20, kBytes);
  std::vector<uint8_t> seeds(tensors.size());
  for (size_t i = 0; i < 160; ++i) {
    const size_t which = (i * 7) % tensors.size();
    ByteQueue& queue = *queues[(i * 3 + i / 20) % queues.size()];
    const Access access = i < tensors.size() ? Access::kOverwrite
                          : i % 2 == 0       ? Access::kUpdate
                                             : Access::kRead;
    const Want want{tensors[which], access};
    const auto request = queue.Push({&want, 1}, {}, world.Soon());
    ASSERT_TRUE(request.ok());
    absl::StatusOr<Awaited> news = queue.Await(*request, world.Soon());
    ASSERT_TRUE(news.ok()) << news.status();
    ASSERT_TRUE(news->pins.has_value() && news->pins->ok()) << i;
    Pin pin = std::move((*news->pins)->front());
    if (access != Access::kOverwrite) {
      EXPECT_TRUE(world.Has(pin, seeds[which])) << i;
    }
    if (access == Access::kRead) {
      pin.ReleaseUnchanged();
      continue;
    }
    seeds[which] = static_cast<uint8_t>(i);
    world.Write(pin, seeds[which]);
    pin.Release();
  }
  queues.clear();
}

}  // namespace
}  // namespace terrace
