// What a run measured, and how it is shown: a line a step, a table at the end,
// JSON for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "terrace/stats.h"

namespace train_gpt {

// Each time is the sum of its own readings of the clock.
struct StepRecord {
  int64_t step = 0;  // from 1
  double loss = 0;   // mean of the micro-batches, before the update
  double gradient_norm = 0;
  double loss_scale = 1;
  bool skipped = false;  // its gradients were not finite, and changed nothing
  double seconds = 0;
  double text_seconds = 0;   // reading the batch
  double model_seconds = 0;  // forward, backward, freeing of gradients
  double optimizer_seconds = 0;
  // Of an offloaded optimizer:
  double update_seconds = 0;  // its kernels were running
  double other_seconds = 0;   // its bookkeeping
  double blocked_read_seconds = 0;
  double blocked_write_seconds = 0;
  double blocked_space_seconds = 0;
  int64_t bytes_read = 0;  // over all links
  int64_t bytes_written = 0;
  std::vector<int64_t> link_bytes;  // over each, as Stats orders them

  double blocked_seconds() const {
    return blocked_read_seconds + blocked_write_seconds + blocked_space_seconds;
  }
};

// The same steps again, in memory.
struct Verification {
  // Against the serial reference, bit by bit.
  int64_t losses_different = 0;
  int64_t parameters_different = 0;
  // Against LibTorch's AdamW.
  double max_loss_difference = 0;
  double parameter_l2_difference = 0;  // relative
  double max_parameter_difference = 0;
  // How close the losses and the L2 norm must be.
  static constexpr double kTolerance = 1e-4;

  bool identical() const {
    return losses_different == 0 && parameters_different == 0;
  }
  bool close() const {
    return max_loss_difference <= kTolerance &&
           parameter_l2_difference <= kTolerance;
  }
};

struct RunReport {
  int64_t parameters = 0;
  std::string dtype;
  bool offloaded = false;
  int64_t state_bytes = 0;
  int64_t budget_bytes = 0;
  int64_t window_bytes = 0;
  int64_t chunk_bytes = 0;
  int64_t arena_peak_bytes = 0;
  int64_t resident_bytes = 0;  // state that stays in memory, headers included
  std::vector<terrace::TierStats> tiers;
  std::vector<terrace::LinkStats> links;
  int64_t rss_peak_bytes = 0;
  std::string engine = "none";
  std::string machine_profile;  // "holds", or why not; empty: none was named
  bool direct_io = false;
  std::string isa;
  std::vector<StepRecord> steps;
  int64_t tokens_per_step = 0;
  // What memory can do, measured in this run; 0: not measured. The disk's rate
  // is given alone: a loop of other sizes at another time is no measure of it.
  double memory_bytes_per_second = 0;
  std::optional<Verification> verification;

  bool scales_losses() const { return dtype == "fp16"; }
};

// "step 3/20  loss 4.91 ...", without its end of line. `stats` may be null.
std::string ProgressLine(const RunReport& report, const StepRecord& step,
                         int64_t steps, const terrace::Stats* stats);

// A line of the steps that were skipped; empty where none was.
std::string SkippedText(const RunReport& report);

// The table at the end, for offloaded runs.
std::string SummaryTable(const RunReport& report);

std::string VerificationText(const Verification& verification);

// The keys are in README.md of this folder.
std::string JsonText(const RunReport& report);

// Whether WriteFile will be able to; leaves nothing new behind.
absl::Status CheckWritable(const std::string& path);
absl::Status WriteFile(const std::string& path, const std::string& text);

}  // namespace train_gpt
