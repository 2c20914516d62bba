// What a run will take of the machine, told and checked before it starts.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "examples/train_gpt/command_line/flags.h"

namespace train_gpt {

// Estimates, in bytes; activations are those of a micro-batch.
struct MemoryNeed {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;  // state in memory
  int64_t activations = 0;
  int64_t libraries = 0;

  int64_t total() const {
    return parameters + gradients + optimizer + activations + libraries;
  }
};

MemoryNeed EstimateMemory(const Flags& flags);

// "1.2 GiB: parameters 0.5 GiB, ..."
std::string Describe(const MemoryNeed& need);

// ResourceExhausted, with the numbers, when less than that is available.
absl::Status CheckMemory(const MemoryNeed& need, int64_t available_bytes);

// 1536 -> "1.5 KiB".
std::string BytesText(double bytes);

}  // namespace train_gpt
