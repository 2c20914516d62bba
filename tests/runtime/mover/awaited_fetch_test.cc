// A fetch ahead that somebody comes to wait for, beside others that nobody
// waits for and one that was demanded.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/runtime/mover/admission_fixture.h"

namespace terrace {
namespace {

using testing::_;
using testing::ElementsAre;

constexpr int64_t kCopyBytes = 2 * kPage;

// One transfer at a time, into memory and beyond it.
class AwaitedFetchTest : public AdmissionTest {
 protected:
  AwaitedFetchTest()
      : AdmissionTest({.hbm_bytes = 32 * kPage,
                       .paths = 1,
                       .io = {.in_flight_bytes = kCopyBytes,
                              .adapts = false,
                              .most_in_flight_bytes = kCopyBytes}}) {
    customer_.step = 1;
  }

  void Start(Tensor& tensor, TierResidency& residency, IoClass io_class) {
    core_.transfers.StartFill(tensor, residency.FindRoom(tensor), io_class);
  }
  // So the next step foresees it.
  void ReadInThisStep(const Tensor& tensor) {
    core_.planner.OnAccess(customer_.id, tensor.id);
    core_.planner.BeginStep(customer_.id);
  }
  std::vector<std::string> OrderOfArrivals() {
    std::vector<std::string> names;
    const std::vector<Arrival> arrivals = core_.Settle();
    for (const Arrival& each : arrivals) {
      EXPECT_TRUE(each.status.ok()) << each.status;
      names.push_back(each.tensor->spec.name);
    }
    Hear(arrivals);
    return names;
  }

  Tensor& other_ = AddResting("other");
  Tensor& awaited_ = AddResting("awaited");
  Tensor& demanded_ = AddResting("demanded");
  Customer& customer_ = core_.Open(kPage, 2);
};

class AwaitedInMemoryTest : public AwaitedFetchTest {
 protected:
  // Both are fetched ahead into memory, and then one is asked for.
  void Ask() {
    Start(other_, core_.residency, IoClass::kPrefetch);
    Start(awaited_, core_.residency, IoClass::kPrefetch);
    Push(customer_, {Read(awaited_)});
    Admit(customer_);
    EXPECT_EQ(customer_.admitted, 1);
  }
};

TEST_F(AwaitedInMemoryTest, AskedForItIsADemandBeforeLaterOnes) {
  Ask();
  Start(demanded_, core_.residency, IoClass::kDemand);
  EXPECT_THAT(OrderOfArrivals(), ElementsAre("awaited", _, _));
  EndPins(Take(customer_), PinEnd::kUnchanged);
}

TEST_F(AwaitedInMemoryTest, ForeseenItComesBetweenADemandAndTheOthers) {
  ReadInThisStep(awaited_);
  Ask();
  Start(demanded_, core_.residency, IoClass::kDemand);
  EXPECT_THAT(OrderOfArrivals(), ElementsAre("demanded", "awaited", "other"));
  EndPins(Take(customer_), PinEnd::kUnchanged);
}

// A tensor has one transfer: who wants it in memory waits until it is on the
// device.
class AwaitedOnDeviceTest : public AwaitedFetchTest {
 protected:
  void Ask() {
    Start(other_, *core_.others.residencies.front(), IoClass::kPrefetch);
    Start(awaited_, *core_.others.residencies.front(), IoClass::kPrefetch);
    Push(customer_, {Read(awaited_)});
    Admit(customer_);
    EXPECT_EQ(customer_.admitted, 0);
  }

  StagingRoom::Lease lease_ = core_.others.staging.Open(
      core_.residency.FindRange(StagingBytes(kPage, 1)), kCopyBytes, 1);
};

TEST_F(AwaitedOnDeviceTest, AskedForItIsADemandBeforeLaterOnes) {
  Ask();
  Start(demanded_, *core_.others.residencies.front(), IoClass::kDemand);
  EXPECT_THAT(OrderOfArrivals(), ElementsAre("awaited", _, _));
}

TEST_F(AwaitedOnDeviceTest, ForeseenItComesBetweenADemandAndTheOthers) {
  ReadInThisStep(awaited_);
  Ask();
  Start(demanded_, *core_.others.residencies.front(), IoClass::kDemand);
  EXPECT_THAT(OrderOfArrivals(), ElementsAre("demanded", "awaited", "other"));
}

}  // namespace
}  // namespace terrace
