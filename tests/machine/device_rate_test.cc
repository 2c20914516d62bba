#include "machine/profile/device_rate.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/device/threaded_device.h"

namespace terrace {
namespace {

constexpr absl::Duration kDeviceTime = absl::Milliseconds(1);

TEST(DeviceRateTest, NoDirectionIsFasterThanTheDevice) {
  ThreadedDevice device({.capacity_bytes = 128 << 20, .rate = 4e9});
  const absl::StatusOr<MediumRates> rates = MeasureDevice(device, kDeviceTime);
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_GT(rates->read_bytes_per_second, 0);
  EXPECT_LE(rates->read_bytes_per_second, 4.4e9);
  EXPECT_GT(rates->write_bytes_per_second, 0);
  EXPECT_LE(rates->write_bytes_per_second, 4.4e9);
  EXPECT_EQ(device.bytes().used_bytes(), 0);  // nothing stays taken
  EXPECT_THAT(device.bytes().violations(), testing::IsEmpty());
}

TEST(DeviceRateTest, ItsErrorsAreAnswers) {
  ThreadedDevice small({.capacity_bytes = 1 << 20});
  EXPECT_TRUE(
      absl::IsResourceExhausted(MeasureDevice(small, kDeviceTime).status()));
  ThreadedDevice device({.capacity_bytes = 128 << 20});
  device.script().Fail(DeviceCallKind::kToHost, 3,
                       {.at_end = absl::UnavailableError("it fell off")});
  EXPECT_TRUE(absl::IsUnavailable(MeasureDevice(device, kDeviceTime).status()));
  EXPECT_EQ(device.bytes().used_bytes(), 0);
}

}  // namespace
}  // namespace terrace
