// Trainings of a runtime whose daemon may be killed at any moment: what comes
// of each is to the bit what plain vectors have that went through the same
// loop.
//
//   SlotTraining training(*std::move(job));  // with Training::kMemory
//   std::thread trains([&] { training.Run(); });
//   ...
//   training.Stop();
//   trains.join();
//   training.Check();
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "terrace/byte_queue.h"
#include "terrace/runtime.h"
#include "tests/daemon/server/connected_job.h"

namespace terrace {

inline constexpr size_t kTrainedFloats = 24 << 10;
inline constexpr int64_t kTrainedBytes = kTrainedFloats * sizeof(float);
inline constexpr size_t kTrainedTensors = 12;

// One step of one tensor's.
inline void Advance(float* values, size_t tensor, int64_t step) {
  for (size_t i = 0; i < kTrainedFloats; ++i) {
    values[i] = values[i] * 0.75F + static_cast<float>((i + 7 * tensor) % 97) +
                static_cast<float>(step % 31);
  }
}

class Training {
 public:
  static constexpr int64_t kMemory = 768 << 10;

  explicit Training(std::unique_ptr<Runtime> job) : job_(std::move(job)) {
    for (size_t i = 0; i < kTrainedTensors; ++i) {
      tensors_.push_back(
          *RegisterOf(*job_, absl::StrCat("t", i), kTrainedBytes));
      auto pin = job_->Acquire(tensors_.back(), Access::kOverwrite, Later());
      EXPECT_TRUE(pin.ok()) << pin.status();
      std::memset(pin->data().data(), 0, pin->data().size());
    }
  }
  virtual ~Training() = default;

  // Steps until it is told to stop; false: one has failed.
  void Run() {
    while (!stops_ && status_.ok()) {
      status_ = Step(steps_);
      if (status_.ok()) ++steps_;
    }
  }
  void Stop() { stops_ = true; }

  // Once it has run.
  void Check() {
    ASSERT_EQ(status_, absl::OkStatus());
    EXPECT_GT(steps_, 0);
    for (size_t i = 0; i < kTrainedTensors; ++i) {
      std::vector<float> expected(kTrainedFloats, 0.0F);
      for (int64_t step = 0; step < steps_; ++step) {
        Advance(expected.data(), i, step);
      }
      const auto pin = job_->Acquire(tensors_[i], Access::kRead, Later());
      ASSERT_TRUE(pin.ok()) << pin.status();
      EXPECT_EQ(std::memcmp(pin->data().data(), expected.data(),
                            static_cast<size_t>(kTrainedBytes)),
                0)
          << "tensor " << i << " after " << steps_ << " steps";
    }
  }
  int64_t steps() const { return steps_; }

 protected:
  virtual absl::Status Step(int64_t step) = 0;

  static void Update(const Pin& pin, size_t tensor, int64_t step) {
    Advance(reinterpret_cast<float*>(pin.data().data()), tensor, step);
  }

  std::unique_ptr<Runtime> job_;
  std::vector<TensorId> tensors_;

 private:
  std::atomic<bool> stops_ = false;
  std::atomic<int64_t> steps_ = 0;
  absl::Status status_;
};

// As an optimizer's: all chunks through a window.
class SlotTraining final : public Training {
 public:
  explicit SlotTraining(std::unique_ptr<Runtime> job)
      : Training(std::move(job)),
        queue_(*job_->OpenQueue(kTrainedBytes, 3, Later())) {}

 private:
  absl::Status Step(int64_t step) override {
    absl::Status status = queue_->BeginStep(step);
    for (size_t i = 0; i < kTrainedTensors && status.ok(); ++i) {
      status = queue_->Push({{tensors_[i], Access::kUpdate}}, i, Later());
    }
    for (size_t i = 0; i < kTrainedTensors && status.ok(); ++i) {
      absl::StatusOr<Ready> ready = queue_->Next(Later());
      status = ready.ok() ? ready->pins.status() : ready.status();
      if (!status.ok()) break;
      Update(ready->pins->front(), static_cast<size_t>(ready->tag), step);
    }
    if (!status.ok()) return status;
    return queue_->CommitStep({step});
  }

  std::unique_ptr<RequestQueue> queue_;
};

// As a model's: groups of several, each an operation; what is idle is given
// back when it is asked for. Tensors come and go beside.
class ByteTraining final : public Training {
 public:
  explicit ByteTraining(std::unique_ptr<Runtime> job)
      : Training(std::move(job)), queue_(*job_->OpenBytes(4 * kTrainedBytes)) {}

 private:
  absl::Status Step(int64_t step) override {
    absl::Status status = queue_->BeginStep(step);
    for (size_t i = 0; i + 1 < kTrainedTensors && status.ok(); i += 2) {
      status = Operation(i, step);
    }
    if (status.ok()) status = Brief(step);
    if (!status.ok()) return status;
    return queue_->CommitStep({step});
  }

  absl::Status Operation(size_t first, int64_t step) {
    const auto pins = Have({{tensors_[first], Access::kUpdate},
                            {tensors_[first + 1], Access::kUpdate}});
    if (!pins.ok()) return pins.status();
    Update((*pins)[0], first, step);
    Update((*pins)[1], first + 1, step);
    return absl::OkStatus();
  }

  // An activation: made, read back, and gone.
  absl::Status Brief(int64_t step) {
    const auto seed = static_cast<uint8_t>(step % 251);
    const auto made =
        RegisterOf(*job_, absl::StrCat("brief", step), kTrainedBytes);
    if (!made.ok()) return made.status();
    {
      const auto pins = Have({{*made, Access::kOverwrite}});
      if (!pins.ok()) return pins.status();
      WritePattern(pins->front().data(), seed);
    }
    {
      const auto pins = Have({{*made, Access::kRead}});
      if (!pins.ok()) return pins.status();
      if (!HasPattern(pins->front().data(), seed)) {
        return absl::DataLossError(absl::StrCat("of step ", step));
      }
    }
    return job_->Unregister(*made);
  }

  absl::StatusOr<std::vector<Pin>> Have(const std::vector<Want>& wants) {
    const auto request = queue_->Push(wants, {}, Later());
    if (!request.ok()) return request.status();
    while (true) {
      auto awaited = queue_->Await(*request, Later());
      if (!awaited.ok()) return awaited.status();
      for (const uint64_t token : awaited->recalls) queue_->Keep(token);
      if (awaited->pins.has_value()) return *std::move(awaited->pins);
    }
  }

  std::unique_ptr<ByteQueue> queue_;
};

}  // namespace terrace
