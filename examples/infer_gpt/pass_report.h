// What a run measured, as JSON for programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/infer_gpt/weights.h"

namespace infer_gpt {

struct PassRecord {
  double seconds = 0;
  uint64_t logits_digest = 0;  // of all their bits
  int64_t bytes_read = 0;
};

struct RunReport {
  int64_t parameters = 0;
  std::string dtype;
  bool in_memory = false;
  WeightPlan plan;
  double loss = 0;  // of the text, before a token was added
  std::vector<PassRecord> passes;
  std::vector<std::vector<int64_t>> tokens;  // that were added, by row
  Weights::Moved moved;
  int64_t rss_peak_bytes = 0;
};

// The keys are in README.md of this folder.
std::string JsonText(const RunReport& report);

}  // namespace infer_gpt
