// A LateStep over the RunningStep, which was begun with StartLate.
//
// One thread at a time. What it is made with must outlive it; in a forked child
// it has ended, refused.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "optimizer/state/state_guard.h"
#include "optimizer/step/running_step.h"
#include "terrace/gradual_step.h"

namespace terrace {

class OrderedStep final : public LateStep {
 public:
  // The deadline is by `clock`.
  OrderedStep(RunningStep& running, StateGuard& guard, Clock& clock,
              absl::Time deadline)
      : running_(running), guard_(guard), clock_(clock), deadline_(deadline) {}
  OrderedStep(const OrderedStep&) = delete;
  OrderedStep& operator=(const OrderedStep&) = delete;

  bool Advance() override;
  void Wait(absl::Time until) override;
  absl::Status result() const override;
  void TakeStepped(std::vector<int>* parameters) override;
  void Hasten(int parameter) override;

 private:
  RunningStep& running_;
  StateGuard& guard_;
  Clock& clock_;
  const absl::Time deadline_;
};

}  // namespace terrace
