// runtime.h: what a child of fork() has of its parent's runtime.
#include <filesystem>

#include "tests/contract/contract_fixture.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

class ForkContract : public ContractTest {
 protected:
  int FilesBelow(int path) {
    int count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::recursive_directory_iterator(world().folder(path))) {
      ++count;
    }
    return count;
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, ForkContract,
                         testing::Values(TestWorld::kMemory, TestWorld::kUring,
                                         TestWorld::kFar, TestWorld::kThreads,
                                         TestWorld::kPmem, TestWorld::kHbm,
                                         TestWorld::kHbmPmem),
                         WorldParamName);

TEST_P(ForkContract, EveryCallIsCancelledAtOnce) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  world().Fill(*queue, a, 1);
  ASSERT_TRUE(queue->BeginStep(1).ok());
  ASSERT_TRUE(queue->Push({{a, Access::kRead}}, 0, Soon()).ok());
  EXPECT_TRUE(InChild([&] {
    TensorSpec spec;
    spec.name = "child's";
    spec.size_bytes = kPage;
    runtime().Prefetch({a});
    return absl::IsCancelled(runtime().Register(spec).status()) &&
           absl::IsCancelled(runtime().OpenQueue(kPage, 1, Soon()).status()) &&
           absl::IsCancelled(
               runtime().Acquire(a, Access::kRead, Soon()).status()) &&
           absl::IsCancelled(queue->Push({{a, Access::kRead}}, 0, Soon())) &&
           absl::IsCancelled(queue->Next(absl::InfiniteFuture()).status()) &&
           absl::IsCancelled(queue->CommitStep({.step = 1})) &&
           absl::IsCancelled(runtime().Close(Soon())) &&
           stats().paths().empty();
  }));
  EXPECT_TRUE(queue->Next(Soon())->pins.ok());
  EXPECT_TRUE(queue->CommitStep({.step = 1}).ok());
}

TEST_P(ForkContract, AChildDropsEverythingAndTheParentGoesOn) {
  Make(4);
  const std::vector<TensorId> tensors = world().RegisterMany(12, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  for (int i = 0; i < 12; ++i) world().Fill(*queue, tensors[i], i);
  absl::StatusOr<Pin> pin = world().Take(*queue, tensors[3], Access::kUpdate);
  ASSERT_TRUE(pin.ok());
  const bool on_disk = !world().folder(0).empty();
  const int files = on_disk ? FilesBelow(0) : 0;
  const std::string folder = world().folder(0);
  EXPECT_TRUE(InChild([&] {
    pin->Discard();
    queue.reset();
    // Not the fixture's: it would remove the folder, which is the parent's.
    delete world().ReleaseRuntime();
    return true;
  }));
  if (on_disk) {
    EXPECT_EQ(FilesBelow(0), files);
  }
  // Neither released nor discarded here.
  EXPECT_TRUE(HasPattern(pin->data(), 3));
  WritePattern(pin->data(), 33);
  pin->Release();
  for (int i = 0; i < 12; ++i) {
    EXPECT_TRUE(world().Holds(*queue, tensors[i], i == 3 ? 33 : i)) << i;
  }
  queue.reset();
  EXPECT_TRUE(runtime().Close(Soon()).ok());
}

TEST_P(ForkContract, ChildrenAtAnyMomentEndAndDisturbNothing) {
  // The mover and the executor are in the middle of something, perhaps with a
  // lock held, whenever a child is made.
  Make(6);
  const std::vector<TensorId> tensors = world().RegisterMany(24, kPage);
  auto queue = world().OpenQueue(kPage, 4);
  for (int i = 0; i < 24; ++i) world().Fill(*queue, tensors[i], i);
  for (int round = 0; round < 8; ++round) {
    for (int i = 0; i < 24; ++i) {
      ASSERT_TRUE(queue->Push({{tensors[i], Access::kRead}}, i, Soon()).ok());
    }
    EXPECT_TRUE(InChild([&] {
      queue.reset();
      delete world().ReleaseRuntime();
      return true;
    }));
    for (int i = 0; i < 24; ++i) {
      absl::StatusOr<Ready> ready = queue->Next(Soon());
      ASSERT_TRUE(ready.ok() && ready->pins.ok());
      EXPECT_TRUE(HasPattern(ready->pins->front().data(),
                             static_cast<uint8_t>(ready->tag)));
    }
  }
}

}  // namespace
}  // namespace terrace
