// What waits for events is done in the order in which it was given, whichever
// is over first, and nothing waits for a device that never answers.
#include "libtorch/accelerator/event_thread.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;

// A device whose events are over when a test says so.
class ToldEvent final : public DeviceEvent {
 public:
  absl::Notification over;
  absl::Status status;
  absl::Status again;  // what the next wait says
};

class ToldDevice final : public StreamedDevice {
 public:
  StreamId CurrentStream() override { return 0; }
  absl::StatusOr<std::shared_ptr<DeviceEvent>> Record(StreamId) override {
    return std::make_shared<ToldEvent>();
  }
  absl::StatusOr<bool> IsOver(DeviceEvent& event) override {
    return static_cast<ToldEvent&>(event).over.HasBeenNotified();
  }
  // Fails once.
  absl::Status Wait(DeviceEvent& event) override {
    auto& told = static_cast<ToldEvent&>(event);
    told.over.WaitForNotification();
    return std::exchange(told.status, told.again);
  }
  absl::Status WaitForAll() override { return all; }
  absl::Status Order(DeviceEvent&, StreamId) override {
    return absl::OkStatus();
  }

  absl::Status all;
};

TEST(EventThread, DoesWhatWaitsInItsOrder) {
  std::vector<int> done;  // of one thread, which has ended when it is read
  const auto first = std::make_shared<ToldEvent>();
  const auto second = std::make_shared<ToldEvent>();
  {
    EventThread thread(std::make_shared<ToldDevice>());
    thread.After({first},
                 [&](const EventThread::Ended&) { done.push_back(1); });
    thread.After({second},
                 [&](const EventThread::Ended&) { done.push_back(2); });
    thread.After({}, [&](const EventThread::Ended&) { done.push_back(3); });
    second->over.Notify();
    first->over.Notify();
  }
  EXPECT_THAT(done, ElementsAre(1, 2, 3));
}

TEST(EventThread, WaitsForAllOfTheEventsAndTellsTheFirstError) {
  const auto first = std::make_shared<ToldEvent>();
  const auto second = std::make_shared<ToldEvent>();
  std::atomic<bool> is_done = false;
  EventThread::Ended ended;
  {
    EventThread thread(std::make_shared<ToldDevice>());
    thread.After({first, second}, [&](const EventThread::Ended& told) {
      ended = told;
      is_done = true;
    });
    first->status = absl::UnavailableError("the device fell off");
    first->over.Notify();
    EXPECT_FALSE(is_done);
    second->over.Notify();
  }
  EXPECT_TRUE(is_done);
  EXPECT_EQ(ended.error, absl::UnavailableError("the device fell off"));
  EXPECT_TRUE(ended.is_over);
}

TEST(EventThread, WhatFailsTwiceIsNotOver) {
  const auto event = std::make_shared<ToldEvent>();
  event->status = event->again = absl::UnavailableError("lost");
  event->over.Notify();
  EventThread::Ended ended;
  {
    EventThread thread(std::make_shared<ToldDevice>());
    thread.After({event},
                 [&](const EventThread::Ended& told) { ended = told; });
  }
  EXPECT_EQ(ended.error, absl::UnavailableError("lost"));
  EXPECT_FALSE(ended.is_over);
}

TEST(EventThread, WithoutAnEventAllOfTheDeviceIsWaitedFor) {
  const auto device = std::make_shared<ToldDevice>();
  const absl::Status why = absl::UnavailableError("no event");
  for (const absl::Status& all :
       {absl::OkStatus(), absl::Status(absl::UnavailableError("lost"))}) {
    device->all = all;
    EventThread::Ended ended;
    {
      EventThread thread(device);
      thread.AfterAll(why,
                      [&](const EventThread::Ended& told) { ended = told; });
    }
    EXPECT_EQ(ended.error, why);
    EXPECT_EQ(ended.is_over, all.ok());
  }
}

TEST(EventThread, LetsGoOfWhatWaitedBeforeItWaitsAgain) {
  const auto held = std::make_shared<int>(1);
  EventThread thread(std::make_shared<ToldDevice>());
  absl::Notification let_go;
  const auto never = std::make_shared<ToldEvent>();
  thread.After({}, [held](const EventThread::Ended&) {});
  thread.After({}, [&, watched = std::weak_ptr<int>(held)](
                       const EventThread::Ended&) { let_go.Notify(); });
  let_go.WaitForNotification();
  EXPECT_EQ(held.use_count(), 1);
}

TEST(EventThread, AForkedChildHasNone) {
  const auto event = std::make_shared<ToldEvent>();
  auto thread = std::make_unique<EventThread>(std::make_shared<ToldDevice>());
  std::atomic<int> done = 0;
  thread->After({event}, [&](const EventThread::Ended&) { ++done; });
  const pid_t child = fork();
  if (child == 0) {
    thread->After({}, [&](const EventThread::Ended&) { ++done; });
    thread.reset();  // waits for nobody
    _exit(done == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  event->over.Notify();
  thread.reset();
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace terrace
