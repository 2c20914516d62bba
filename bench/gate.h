// Keeps measurements apart from what else the machine does: a run begins only
// after a quiet moment, and one that others disturbed is done again. Without
// it, equal runs are 2 to 20 times apart on a shared machine.
//
// One thread at a time. Foreign is what /proc/stat counts as busy or stolen
// less what this process and its ended children used.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace terrace::bench {

struct GateOptions {
  bool enabled = true;
  double max_wait_seconds = 10;  // for a quiet moment, before each run
  int max_repeats = 2;           // of a disturbed run
};

// Processor seconds of this process and of its ended children.
double OwnCpuSeconds();

class Gate {
 public:
  explicit Gate(const GateOptions& options) : options_(options) {}

  // Runs `body` behind the gate. A run that stays disturbed counts, and is
  // told in disturbed().
  absl::Status Run(const std::function<absl::Status()>& body);

  bool enabled() const { return options_.enabled; }
  int runs() const { return runs_; }            // that count
  int rejected() const { return rejected_; }    // done again
  int disturbed() const { return disturbed_; }  // count nevertheless

 private:
  bool AwaitQuiet();

  const GateOptions options_;
  int runs_ = 0;
  int rejected_ = 0;
  int disturbed_ = 0;
};

}  // namespace terrace::bench
