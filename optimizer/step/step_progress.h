// Where each chunk is in a step: done, missing, or pushed; and in which order
// an attempt pushes those that are missing. Of several attempts, so that no
// chunk is updated twice in a step and none is forgotten, whatever fails.
//
// One thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/check.h"

namespace terrace {

class StepProgress {
 public:
  // Chunks beyond those it knows are done.
  void Resize(int chunks) {
    states_.resize(static_cast<size_t>(chunks), State::kDone);
  }
  // No chunk is missing.
  void Clear() {
    states_.assign(states_.size(), State::kDone);
    missing_ = 0;
  }

  // A new step of the chunks with wanted[i] true. None may be missing.
  void BeginStep(const std::vector<bool>& wanted) {
    TERRACE_CHECK(missing_ == 0);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i]) SetState(static_cast<int>(i), State::kMissing);
    }
  }
  // What is missing is to be pushed: first those in `order`, in that order.
  void BeginAttempt(const std::vector<int>& order = {}) {
    to_push_.clear();
    std::vector<bool> is_there(states_.size(), false);
    const auto add = [&](int chunk) {
      const auto i = static_cast<size_t>(chunk);
      if (states_[i] != State::kMissing || is_there[i]) return;
      is_there[i] = true;
      to_push_.push_back(chunk);
    };
    for (const int chunk : order) add(chunk);
    for (size_t i = 0; i < states_.size(); ++i) add(static_cast<int>(i));
  }
  // The queue that they were pushed to is gone.
  void ForgetPushed() {
    for (State& state : states_) {
      if (state == State::kPushed) state = State::kMissing;
    }
  }

  bool has_next() const { return !to_push_.empty(); }
  int next() const { return to_push_.front(); }
  void SetPushed() {
    SetState(next(), State::kPushed);
    to_push_.pop_front();
  }
  // The next one is not part of the step after all.
  void SkipNext() {
    SetState(next(), State::kDone);
    to_push_.pop_front();
  }
  // Of a chunk that was pushed.
  void SetDone(int chunk) {
    CheckPushed(chunk);
    SetState(chunk, State::kDone);
  }
  void SetRefused(int chunk) {
    CheckPushed(chunk);
    SetState(chunk, State::kMissing);
  }
  // It was refused to an earlier attempt: this one pushes it, last.
  void PushAgain(int chunk) { to_push_.push_back(chunk); }
  // These go before the others that were not pushed yet.
  void PushNext(const std::vector<int>& chunks) {
    for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) {
      const auto place = std::find(to_push_.begin(), to_push_.end(), *chunk);
      if (place != to_push_.end()) to_push_.erase(place);
      to_push_.push_front(*chunk);
    }
  }
  // Of these, those that were not pushed yet go before the others.
  void Hasten(const std::vector<int>& chunks) {
    std::vector<int> waiting;
    for (const int chunk : chunks) {
      if (std::find(to_push_.begin(), to_push_.end(), chunk) !=
          to_push_.end()) {
        waiting.push_back(chunk);
      }
    }
    PushNext(waiting);
  }
  // A chunk that was done was not updated after all.
  void SetLost(int chunk) { SetState(chunk, State::kMissing); }

  int64_t missing() const { return missing_; }  // or pushed
  bool IsMissing(int chunk) const {
    const auto i = static_cast<size_t>(chunk);
    return i < states_.size() && states_[i] != State::kDone;
  }

 private:
  enum class State : uint8_t { kDone, kMissing, kPushed };

  void CheckPushed(int chunk) const {
    const auto i = static_cast<size_t>(chunk);
    TERRACE_CHECK(i < states_.size() && states_[i] == State::kPushed);
  }
  void SetState(int chunk, State state) {
    State& old = states_[static_cast<size_t>(chunk)];
    missing_ -= old == State::kDone ? 0 : 1;
    missing_ += state == State::kDone ? 0 : 1;
    old = state;
  }

  std::vector<State> states_;  // by chunk
  int64_t missing_ = 0;        // chunks not kDone
  std::deque<int> to_push_;    // of this attempt
};

}  // namespace terrace
