// Parameters that are offloaded, as a device: copies bring them, and hold up
// nothing but one another.
#include "libtorch/offloaded_device.h"

#include <ATen/ATen.h>

#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

class OffloadedDeviceTest : public HookTest {};

TEST_F(OffloadedDeviceTest, CopiesOutAndBack) {
  Make(1 << 20);
  const at::Tensor plain = at::randn({64, 64});
  const at::Tensor tensor = Managed("a", plain.clone());
  EvictFromMemory();
  OffloadedDevice device;
  void* const address = device.Place(tensor);
  auto stream = device.MakeStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  std::vector<float> values(64 * 64);
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  ASSERT_TRUE((*stream)->CopyToHost(values.data(), address, bytes).ok());
  EXPECT_EQ(values[5], plain[0][5].item<float>());
  for (float& value : values) value += 1;
  ASSERT_TRUE((*stream)->CopyToDevice(address, values.data(), bytes).ok());
  ASSERT_TRUE((*stream)->Wait().ok());
  EvictFromMemory();
  EXPECT_TRUE(tensor.equal(plain + 1));
  device.Drop(address);
  EXPECT_FALSE((*stream)->CopyToHost(values.data(), address, bytes).ok());
}

TEST_F(OffloadedDeviceTest, WhileACopyReadsOthersArePlacedAndDropped) {
  Make(1 << 20);
  const at::Tensor tensor = Managed("a", at::ones({64, 64}));
  const at::Tensor other = Managed("b", at::ones({64, 64}));
  EvictFromMemory();
  OffloadedDevice device;
  void* const address = device.Place(tensor);
  world().faults().FailAll({.kind = FaultKind::kNever}, CallFilter::kReads);
  auto stream = device.MakeStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  float value = 0;
  auto copy = std::async(std::launch::async, [&] {
    return (*stream)->CopyToHost(&value, address, sizeof(value));
  });
  EXPECT_EQ(copy.wait_for(std::chrono::milliseconds(100)),
            std::future_status::timeout);
  auto beside = std::async(std::launch::async, [&] {
    device.SetBeside(false);
    device.Drop(device.Place(other));
  });
  EXPECT_EQ(beside.wait_for(std::chrono::seconds(10)),
            std::future_status::ready);
  world().faults().Clear();
  EXPECT_TRUE(copy.get().ok());
  EXPECT_EQ(value, 1);
  beside.get();
}

}  // namespace
}  // namespace terrace
