// A host whose jobs share one disk of a known rate, in virtual time: each has
// queues and an engine of its own, as in a daemon, and asks for its next
// transfer when one has ended.
//
// A job's queue is turned when it was woken or its own time has come, and never
// else, so that a wake-up that is lost is seen: it waits for ever.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aio/io_paths.h"
#include "daemon/links/shared_link.h"
#include "gtest/gtest.h"
#include "tests/aio/test_files.h"
#include "tests/support/manual_clock.h"

namespace terrace {

class LinkedHost;

class LinkedJob {
 public:
  struct Load {
    int transfers = 8;  // at a time
    int64_t bytes = 1 << 20;
    IoDirection direction = IoDirection::kRead;
    IoClass io_class = IoClass::kDemand;
    // From one's end until the next is asked for.
    absl::Duration pause = absl::ZeroDuration();
  };

  LinkedJob(LinkedHost& host, const SharedLink::Job& job,
            const SharedLink::Weights& weights);

  ~LinkedJob() {
    if (io_ != nullptr) io_->Abandon();
  }

  void Begin(const Load& load) {
    load_ = load;
    is_woken_ = true;
    for (int i = 0; i < load.transfers; ++i) Ask();
  }
  // It asks for nothing more.
  void Stop() { is_stopped_ = true; }

  // Its thread turns no more, as far as others can see.
  void Freeze() { is_frozen_ = true; }
  void Thaw() { is_frozen_ = false; }
  void Abandon() {
    is_frozen_ = true;
    io_->Abandon();
    io_.reset();
  }

  bool IsDue(absl::Time now) const {
    return !is_frozen_ && (is_woken_ || next_event_ <= now);
  }
  // As it knew when it had turned: it sleeps until then.
  absl::Time next_event() const {
    return is_frozen_ ? absl::InfiniteFuture() : next_event_;
  }
  void Turn();

  int64_t moved_bytes() const { return moved_bytes_; }
  int64_t pending() const { return io_->pending(); }
  const std::vector<absl::Duration>& waits() const { return waits_; }
  // For a change that its own thread makes, which turns after it.
  IoPaths& io() {
    is_woken_ = true;
    return *io_;
  }
  int wakes() const { return wakes_; }

 private:
  void Ask();
  absl::Time NextEvent() const {
    const absl::Time asks =
        asks_at_.empty() ? absl::InfiniteFuture()
                         : *std::min_element(asks_at_.begin(), asks_at_.end());
    return std::min(io_->NextEvent(), asks);
  }

  LinkedHost& host_;
  std::unique_ptr<IoPaths> io_;
  AlignedBuffer buffer_{4 << 20};
  Load load_;
  uint64_t next_tag_ = 1;
  std::vector<std::pair<uint64_t, absl::Time>> asked_;
  std::vector<absl::Time> asks_at_;
  std::vector<absl::Duration> waits_;
  int64_t moved_bytes_ = 0;
  int wakes_ = 0;
  absl::Time next_event_ = absl::InfiniteFuture();
  bool is_woken_ = true;
  bool is_stopped_ = false;
  bool is_frozen_ = false;
};

class LinkedHost {
 public:
  static constexpr int64_t kRate = 400'000'000;

  explicit LinkedHost(const IoQueueOptions& options = {})
      : link(options, clock),
        device(std::make_shared<PacedDevice>(PaceOptions{kRate, kRate})) {}

  LinkedJob& Add(const SharedLink::Job& job,
                 const SharedLink::Weights& weights = {}) {
    jobs.push_back(std::make_unique<LinkedJob>(*this, job, weights));
    return *jobs.back();
  }

  // False: nobody was due, and nothing comes.
  bool Advance() {
    bool any = false;
    for (bool turned = true; turned;) {
      turned = false;
      for (const auto& job : jobs) {
        if (!job->IsDue(clock.Now())) continue;
        job->Turn();
        most_in_flight = std::max(most_in_flight, link.use().in_flight_bytes);
        turned = any = true;
      }
    }
    absl::Time next = absl::InfiniteFuture();
    for (const auto& job : jobs) next = std::min(next, job->next_event());
    if (next == absl::InfiniteFuture()) return any;
    clock.JumpTo(next);
    return true;
  }
  void Pass(absl::Duration time) {
    const absl::Time end = clock.Now() + time;
    while (clock.Now() < end) ASSERT_TRUE(Advance()) << "all wait for ever";
  }

  VirtualClock clock;
  SharedLink link;
  std::shared_ptr<PacedDevice> device;
  std::vector<std::unique_ptr<LinkedJob>> jobs;
  int64_t most_in_flight = 0;
};

inline LinkedJob::LinkedJob(LinkedHost& host, const SharedLink::Job& job,
                            const SharedLink::Weights& weights)
    : host_(host),
      io_(std::make_unique<IoPaths>(
          MakePacedEngine(MakeMemoryEngine(1, 8 << 20, host.clock),
                          {host.device}, host.clock),
          host.clock)) {
  const auto join = [&](std::function<void()> wake) {
    return host.link.Join(job, weights, [this, wake = std::move(wake)] {
      is_woken_ = true;
      ++wakes_;
      wake();
    });
  };
  EXPECT_TRUE(io_->AddPath("disk", 0, {}, join).ok());
}

inline void LinkedJob::Ask() {
  asked_.emplace_back(next_tag_, host_.clock.Now());
  io_->Enqueue(0, {load_.direction, load_.io_class, buffer_.data(), 0,
                   load_.bytes, next_tag_++});
}

inline void LinkedJob::Turn() {
  is_woken_ = false;
  const absl::Time now = host_.clock.Now();
  const auto due =
      std::erase_if(asks_at_, [now](absl::Time at) { return at <= now; });
  for (size_t i = 0; i < due && !is_stopped_; ++i) Ask();
  std::vector<Completion> ended;
  io_->Poll(&ended);
  for (const Completion& each : ended) {
    const auto asked =
        std::find_if(asked_.begin(), asked_.end(),
                     [&](const auto& one) { return one.first == each.tag; });
    ASSERT_NE(asked, asked_.end());
    waits_.push_back(now - asked->second);
    asked_.erase(asked);
    if (each.status.ok()) moved_bytes_ += load_.bytes;
    if (!is_stopped_) asks_at_.push_back(now + load_.pause);
  }
  next_event_ = NextEvent();
}

}  // namespace terrace
