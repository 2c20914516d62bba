#include "runtime/mover/window_opener.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/mover/admission_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// Memory for four slots.
class WindowOpenerTest : public AdmissionTest {
 protected:
  using Opened = absl::StatusOr<OpenedQueue>;

  WindowOpenerTest() : AdmissionTest({.budget_bytes = 8 * kPage}) {}

  std::shared_ptr<Question> Open(int slots,
                                 absl::Time deadline = absl::InfiniteFuture()) {
    OpenRequest request;
    request.slot_bytes = kPage;
    request.slots = slots;
    request.deadline = deadline;
    auto asked = std::make_shared<Question>(*core_.port);
    request.id = asked->id();
    opener_.Add(std::move(request));
    return asked;
  }
  void Serve() {
    opener_.Serve(
        core_.machine.clock.Now(), [] { return std::string("2 queues"); },
        &errors_);
  }
  // An answer that is there.
  Opened Get(const std::shared_ptr<Question>& asked) {
    return asked->Await<OpenedQueue>(core_.machine.clock);
  }
  absl::Time After(int seconds) {
    return core_.machine.clock.Now() + absl::Seconds(seconds);
  }
  size_t open() const { return core_.customers.open().size(); }

  WindowOpener opener_{{.ports = &core_.ports,
                        .customers = &core_.customers,
                        .planner = &core_.planner,
                        .working = &core_.working,
                        .staging = &core_.others.staging,
                        .byte_pins = &core_.byte_pins,
                        .write_back = &core_.write_back,
                        .transfers = &core_.transfers}};
};

TEST_F(WindowOpenerTest, AWindowThatHasRoomOpens) {
  const auto reply = Open(3);
  Serve();
  const Opened opened = Get(reply);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Customer* const customer = core_.customers.FindOpen(opened->id);
  ASSERT_NE(customer, nullptr);
  EXPECT_EQ(core_.port->TakeQueue(opened->id), customer->port);
  EXPECT_EQ(customer->window->slots(), 3);
  EXPECT_EQ(customer->window->stride(), 2 * kPage);
  EXPECT_EQ(core_.residency.windows().size_bytes(), 6 * kPage);
}

TEST_F(WindowOpenerTest, WhatExceedsTheBudgetWithTheOthersIsRefusedAtOnce) {
  Open(3);
  Serve();
  const absl::Status refused = Get(Open(2)).status();
  EXPECT_EQ(
      refused,
      absl::ResourceExhaustedError(
          "a window of 2 slots of 4096 bytes: all windows together "
          "would take 40960 bytes, and the budget is 32768; the least budget "
          "for it is 40960"));
}

TEST_F(WindowOpenerTest, ResidentsLeaveForIt) {
  Tensor& clean = AddResting("clean");
  core_.Fetch(clean);
  Tensor& dirty = core_.Add("dirty");
  core_.Write(dirty);
  const auto reply = Open(4);
  Serve();
  EXPECT_EQ(open(), 0u);
  EXPECT_EQ(clean.at(kDramTier), nullptr);
  EXPECT_EQ(dirty.drain(), Drain::kSealing);  // its window is not waited with
  Hear(core_.Settle());
  Serve();
  EXPECT_TRUE(Get(reply).ok());
  EXPECT_TRUE(dirty.Fetchable());
}

TEST_F(WindowOpenerTest, WhileOneWaitsNothingBecomesResident) {
  Tensor& pinned = AddResting("pinned");
  core_.Fetch(pinned);
  pinned.Hold(kDramTier, Access::kRead);
  const auto reply = Open(4);
  Serve();
  Tensor& other = core_.Add("other");
  EXPECT_TRUE(core_.residency.FindRoom(other).empty());
  pinned.Unhold(kDramTier, Access::kRead);
  Serve();
  EXPECT_TRUE(Get(reply).ok());
}

TEST_F(WindowOpenerTest, FirstInFirstOutAndOthersEndAtTheirDeadlines) {
  Tensor& pinned = AddResting("pinned");
  core_.Fetch(pinned);
  pinned.Hold(kDramTier, Access::kRead);
  const auto first = Open(4, After(9));
  const auto second = Open(1, After(3));  // it would have room
  Serve();
  EXPECT_EQ(open(), 0u);
  EXPECT_EQ(opener_.NextDeadline(), After(3));
  core_.machine.clock.JumpTo(After(3));
  Serve();
  EXPECT_TRUE(absl::IsResourceExhausted(Get(second).status()));
  EXPECT_EQ(opener_.NextDeadline(), After(6));
  core_.machine.clock.JumpTo(After(6));
  Serve();
  const absl::Status late = Get(first).status();
  EXPECT_TRUE(absl::IsResourceExhausted(late));
  EXPECT_EQ(late.message(),
            "a window of 32768 bytes: 24576 of 32768 are free, 24576 of them "
            "in one part, and what is between could not be moved out in time; "
            "held: 2 queues");
  EXPECT_EQ(opener_.NextDeadline(), absl::InfiniteFuture());
  pinned.Unhold(kDramTier, Access::kRead);
  EXPECT_FALSE(core_.residency.FindRoom(core_.Add("x")).empty());
}

TEST_F(WindowOpenerTest, WhereNothingCanLeaveItIsRefusedAtOnce) {
  Tensor& homeless = core_.Add("homeless", kPage, kNoTier);
  core_.Write(homeless);
  const auto reply = Open(4);
  Serve();
  EXPECT_TRUE(absl::IsResourceExhausted(Get(reply).status()));
}

TEST_F(WindowOpenerTest, AWriteBackThatFailedIsNamed) {
  Tensor& dirty = core_.Add("dirty");
  core_.Write(dirty);
  for (const TierId tier : {kDisk0, kDisk1}) {
    core_.write_back.OnWriteFailed({.tensor = &dirty,
                                    .edge = {kDramTier, tier},
                                    .status = absl::UnavailableError("EIO")},
                                   true, &errors_);
  }
  const auto reply = Open(4);
  Serve();
  EXPECT_THAT(std::string(Get(reply).status().message()),
              HasSubstr("held: 2 queues; not written back: 'dirty': EIO"));
}

TEST_F(WindowOpenerTest, AllThatWaitAreToldWhyTheyAreRefused) {
  const auto reply = Open(1);
  opener_.Refuse(absl::CancelledError("closing"));
  EXPECT_EQ(Get(reply).status(), absl::CancelledError("closing"));
  Serve();
  EXPECT_EQ(open(), 0u);
}

}  // namespace
}  // namespace terrace
