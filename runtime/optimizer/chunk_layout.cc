#include "runtime/optimizer/chunk_layout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status_macros.h"
#include "runtime/optimizer/step_check.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kLargestWindowBytes = 128 * kMiB;
constexpr int64_t kGoodChunkBytes = kMiB;  // header and padding: 0.4 %
constexpr int64_t kMinimumSlots = 3;       // read, update, write
constexpr int64_t kFewSlots = 4;
constexpr int64_t kGoodSlots = 8;
constexpr int64_t kMostSlots = 64;
// Keeps every later sum and product of 12 bytes an element far from overflow.
constexpr int64_t kMostElements = int64_t{1} << 56;

int64_t RoundDown(int64_t value, int64_t multiple) {
  return value / multiple * multiple;
}

absl::Status CheckParameters(absl::Span<const ParameterSpec> parameters) {
  int64_t total = 0;
  for (const ParameterSpec& parameter : parameters) {
    if (parameter.count < 0 || parameter.count > kMostElements - total) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", parameter.name, "' has a count of ",
                       parameter.count, " elements"));
    }
    if (parameter.dtype > DType::kFloat16) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", parameter.name, "' has unknown dtype ",
                       static_cast<int>(parameter.dtype)));
    }
    if (parameter.group < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter '", parameter.name, "' is in group ", parameter.group));
    }
    total += parameter.count;
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const OptimizerOptions& options) {
  if (options.name.empty()) {
    return absl::InvalidArgumentError("optimizer option name is empty");
  }
  TERRACE_RETURN_IF_ERROR(CheckAdamOptions(options.adam, "optimizer option"));
  // Written so that a NaN is bad.
  if (!(options.max_gradient_norm >= 0) ||
      !std::isfinite(options.max_gradient_norm)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer option max_gradient_norm is ", options.max_gradient_norm));
  }
  if (options.chunk_bytes < kSmallestChunkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer option chunk_bytes is ", options.chunk_bytes,
                     ", the least is ", kSmallestChunkBytes));
  }
  if (options.window_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer option window_bytes is ", options.window_bytes));
  }
  return absl::OkStatus();
}

int64_t LargestPayload(absl::Span<const Chunk> chunks) {
  int64_t largest = 0;
  for (const Chunk& chunk : chunks) {
    largest = std::max(largest, chunk.payload_bytes());
  }
  return largest;
}

// The most slots, up to `most`, whose window is within `limit_bytes`.
int64_t SlotsWithin(int64_t slot_bytes, int64_t most, int64_t limit_bytes) {
  int64_t slots = std::min(most, limit_bytes / WindowBytes(slot_bytes, 1) + 1);
  while (slots > 0 &&
         WindowBytes(slot_bytes, static_cast<int>(slots)) > limit_bytes) {
    --slots;
  }
  return slots;
}

// One guess: chunks of `chunk_bytes` in up to `most` slots.
struct Candidate {
  int64_t chunk_bytes;
  int64_t least_slots;
  int64_t most_slots;
  int64_t limit_bytes;
};

// From the best to the least.
std::vector<Candidate> Candidates(const OptimizerOptions& options,
                                  int64_t budget_bytes) {
  const bool chosen = options.window_bytes == 0;
  const int64_t most =
      chosen ? budget_bytes : std::min(options.window_bytes, budget_bytes);
  const int64_t half = chosen ? budget_bytes / 2 : most;
  const int64_t target =
      chosen ? std::min(budget_bytes / 4, kLargestWindowBytes) : most;
  const auto size = [&](int64_t bytes, int64_t least) {
    bytes = std::max(RoundDown(bytes, kSmallestChunkBytes), least);
    return std::min(bytes, options.chunk_bytes);
  };
  const int64_t good = size(target / kGoodSlots, kGoodChunkBytes);
  return {
      {good, kGoodSlots, kMostSlots, target},
      {good, kFewSlots, kGoodSlots, half},
      {size(half / kFewSlots, kSmallestChunkBytes), kFewSlots, kGoodSlots,
       half},
      {kSmallestChunkBytes, kFewSlots, kGoodSlots, half},
      {kSmallestChunkBytes, kMinimumSlots, kGoodSlots, half},
      {kSmallestChunkBytes, kMinimumSlots, kMinimumSlots, most},
  };
}

void Describe(absl::Span<const ParameterSpec> parameters,
              absl::Span<const Chunk> existing, ChunkPlan& result) {
  OptimizerPlan& plan = result.plan;
  for (const ParameterSpec& parameter : parameters) {
    plan.parameters += parameter.count;
    plan.state_bytes +=
        parameter.count * (parameter.dtype == DType::kFloat32 ? 8 : 12);
  }
  for (absl::Span<const Chunk> chunks :
       {existing, absl::MakeConstSpan(result.chunks)}) {
    for (const Chunk& chunk : chunks) {
      plan.disk_bytes += ResidentBytes(chunk.payload_bytes());
    }
  }
}

}  // namespace

int64_t ChunkElements(DType dtype, int64_t chunk_bytes) {
  const int64_t element_bytes = dtype == DType::kFloat32 ? 8 : 12;
  return RoundDown((chunk_bytes - kChunkHeaderBytes) / element_bytes,
                   kChunkGranule);
}

std::vector<Chunk> CutIntoChunks(absl::Span<const ParameterSpec> parameters,
                                 int64_t chunk_bytes, size_t first) {
  TERRACE_CHECK(chunk_bytes >= kSmallestChunkBytes);
  std::vector<Chunk> chunks;
  int64_t place = 0;
  for (size_t i = 0; i < first; ++i) place += parameters[i].count;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const int64_t full = ChunkElements(dtype, chunk_bytes);
    bool open = false;  // the last chunk is of this dtype
    for (size_t i = first; i < parameters.size(); ++i) {
      if (parameters[i].dtype != dtype) continue;
      int64_t offset = 0;
      while (offset < parameters[i].count) {
        if (!open || chunks.back().count == full) {
          chunks.push_back({.dtype = dtype, .first = place});
          open = true;
        }
        Chunk& chunk = chunks.back();
        const int64_t count =
            std::min(parameters[i].count - offset, full - chunk.count);
        chunk.segments.push_back(
            {static_cast<int>(i), offset, chunk.count, count});
        chunk.count += count;
        offset += count;
        place += count;
      }
    }
  }
  return chunks;
}

absl::StatusOr<ChunkPlan> PlanChunks(absl::Span<const ParameterSpec> parameters,
                                     const OptimizerOptions& options,
                                     int64_t host_budget_bytes,
                                     absl::Span<const Chunk> existing,
                                     size_t first) {
  TERRACE_RETURN_IF_ERROR(CheckParameters(parameters));
  TERRACE_RETURN_IF_ERROR(CheckOptions(options));
  const auto count = [existing](const std::vector<Chunk>& chunks) {
    return static_cast<int64_t>(existing.size() + chunks.size());
  };
  const int64_t existing_bytes = LargestPayload(existing);
  const std::vector<Chunk> smallest =
      CutIntoChunks(parameters, kSmallestChunkBytes, first);
  const int64_t least_slots = std::min(kMinimumSlots, count(smallest));
  const int64_t minimum_bytes =
      WindowBytes(std::max(existing_bytes, LargestPayload(smallest)),
                  static_cast<int>(least_slots));
  for (const Candidate& candidate : Candidates(options, host_budget_bytes)) {
    ChunkPlan result;
    OptimizerPlan& plan = result.plan;
    result.chunks = CutIntoChunks(parameters, candidate.chunk_bytes, first);
    plan.chunks = count(result.chunks);
    plan.chunk_bytes = std::max(existing_bytes, LargestPayload(result.chunks));
    plan.slots = SlotsWithin(plan.chunk_bytes,
                             std::min(candidate.most_slots, plan.chunks),
                             candidate.limit_bytes);
    if (plan.slots < std::min(candidate.least_slots, plan.chunks)) continue;
    plan.window_bytes =
        WindowBytes(plan.chunk_bytes, static_cast<int>(plan.slots));
    plan.minimum_budget_bytes = minimum_bytes;
    Describe(parameters, existing, result);
    return result;
  }
  const bool budget = host_budget_bytes < minimum_bytes;
  return absl::ResourceExhaustedError(absl::StrCat(
      "optimizer '", options.name, "': a ", budget ? "budget" : "window",
      " of ", budget ? host_budget_bytes : options.window_bytes,
      " bytes is below the minimum of ", minimum_bytes, " bytes"));
}

}  // namespace terrace
