// The fake's end is that of terrace/runtime.h: tests of customers rely on it.
#include "tests/support/map_runtime.h"

#include <memory>

#include "gtest/gtest.h"
#include "tests/support/inline_executor.h"

namespace terrace {
namespace {

class MapRuntimeTest : public testing::Test {
 protected:
  static constexpr int64_t kSize = 4096;

  TensorId Register(const std::string& name) {
    TensorSpec spec;
    spec.name = name;
    spec.size_bytes = kSize;
    const absl::StatusOr<TensorId> id = runtime_.Register(spec);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(TensorId());
  }
  std::unique_ptr<RequestQueue> OpenQueue() {
    auto queue = runtime_.OpenQueue(kSize, 2, Time());
    EXPECT_TRUE(queue.ok()) << queue.status();
    return queue.ok() ? *std::move(queue) : nullptr;
  }
  absl::Status Close() { return runtime_.Close(absl::InfiniteFuture()); }

  InlineExecutor executor_;
  MapRuntime runtime_{{}, SystemClock(), executor_};
};

TEST_F(MapRuntimeTest, EveryCallAfterACloseIsCancelledAndItMayBeRepeated) {
  const TensorId a = Register("a");
  EXPECT_TRUE(Close().ok());
  EXPECT_TRUE(Close().ok());
  TensorSpec spec;
  spec.name = "late";
  spec.size_bytes = kSize;
  EXPECT_TRUE(absl::IsCancelled(runtime_.Register(spec).status()));
  EXPECT_TRUE(absl::IsCancelled(runtime_.OpenQueue(kSize, 1, Time()).status()));
  EXPECT_TRUE(absl::IsCancelled(
      runtime_.Acquire(a, Access::kOverwrite, Time()).status()));
}

TEST_F(MapRuntimeTest, ACloseThatIsRefusedCancelsWhatIsAskedLater) {
  const TensorId a = Register("a");
  auto queue = OpenQueue();
  ASSERT_NE(queue, nullptr);
  ASSERT_TRUE(queue->BeginStep(1).ok());
  ASSERT_TRUE(queue->Push({{a, Access::kOverwrite}}, 0, Time()).ok());
  absl::StatusOr<Ready> ready = queue->Next(Time());
  ASSERT_TRUE(ready.ok() && ready->pins.ok());
  ASSERT_TRUE(queue->Push({{a, Access::kOverwrite}}, 0, Time()).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Close()));
  EXPECT_TRUE(absl::IsCancelled(queue->Next(Time()).status()));
  EXPECT_TRUE(absl::IsCancelled(queue->Push({{a, Access::kRead}}, 0, Time())));
  EXPECT_TRUE(absl::IsCancelled(queue->CommitStep({.step = 1})));
  EXPECT_TRUE(absl::IsCancelled(queue->BeginStep(2)));
  EXPECT_TRUE(absl::IsCancelled(queue->AbortStep()));
  // What is held stays usable until it is given back.
  Pin& pin = ready->pins->front();
  pin.data()[0] = std::byte{7};
  EXPECT_EQ(pin.data()[0], std::byte{7});
  pin.Release();
  EXPECT_TRUE(absl::IsFailedPrecondition(Close()));
  queue.reset();
  EXPECT_TRUE(Close().ok());
}

}  // namespace
}  // namespace terrace
