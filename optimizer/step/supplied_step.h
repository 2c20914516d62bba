// A GradualStep over the RunningStep, which one begun with StartGradual.
//
// One thread at a time. What it is made with must outlive it; in a forked child
// it refuses and its end has no effect.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "optimizer/state/state_guard.h"
#include "optimizer/step/running_step.h"
#include "terrace/gradual_step.h"

namespace terrace {

class SuppliedStep final : public GradualStep {
 public:
  SuppliedStep(RunningStep& running, StateGuard& guard, Clock& clock)
      : running_(running), guard_(guard), clock_(clock) {}
  ~SuppliedStep() override;
  SuppliedStep(const SuppliedStep&) = delete;
  SuppliedStep& operator=(const SuppliedStep&) = delete;

  absl::Status Supply(int parameter, const void* gradient,
                      DType dtype) override;
  absl::Status EndSupply() override;
  absl::Status Advance() override;
  void TakeStepped(std::vector<int>* parameters) override;
  absl::Status Finish(absl::Time deadline) override;
  void GiveUp(absl::string_view why) override;

 private:
  RunningStep& running_;
  StateGuard& guard_;
  Clock& clock_;
  bool supply_ended_ = false;
  bool done_ = false;
  absl::Status result_;  // once it is done
};

}  // namespace terrace
