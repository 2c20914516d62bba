#include "optimizer/chunks/chunk_layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "optimizer/chunks/adam_check.h"

namespace terrace {
namespace {

// In the order in which their chunks lie.
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16,
                             DType::kFloat16};
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kLargestWindowBytes = 128 * kMiB;
constexpr int64_t kGoodChunkBytes = kMiB;  // header and padding: 0.4 %
constexpr int64_t kMinimumSlots = 3;       // read, update, write
constexpr int64_t kFewSlots = 4;
constexpr int64_t kGoodSlots = 8;
constexpr int64_t kMostSlots = 64;
// Keeps every later sum and product of 12 bytes an element far from overflow.
constexpr int64_t kMostElements = int64_t{1} << 56;

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

int64_t WindowTarget(int64_t budget_bytes, int64_t state_bytes) {
  const int64_t tenth = (state_bytes - budget_bytes) / 10;  // of what streams
  const int64_t wanted =
      std::max(budget_bytes / 4, std::min(budget_bytes / 2, tenth));
  return std::min(wanted, kLargestWindowBytes);
}

// From the best to the least.
std::vector<Candidate> Candidates(const OptimizerOptions& options,
                                  int64_t budget_bytes, int64_t state_bytes) {
  const bool chosen = options.window_bytes == 0;
  const int64_t most =
      chosen ? budget_bytes : std::min(options.window_bytes, budget_bytes);
  const int64_t half = chosen ? budget_bytes / 2 : most;
  const int64_t target =
      chosen ? WindowTarget(budget_bytes, state_bytes) : most;
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

// What a number of chunks come to, without making them: those of a dtype are
// all alike but the last.
struct ChunkSizes {
  int64_t chunks = 0;
  int64_t largest_payload_bytes = 0;
  int64_t disk_bytes = 0;

  void Add(const Chunk& chunk, int64_t times) {
    const int64_t payload_bytes = chunk.payload_bytes();
    chunks += times;
    largest_payload_bytes = std::max(largest_payload_bytes, payload_bytes);
    disk_bytes += times * ResidentBytes(payload_bytes);
  }
};

// Of elements by dtype, beside others that are there.
using ElementCounts = std::array<int64_t, std::size(kDTypes)>;

ChunkSizes SizesOf(const ElementCounts& elements, int64_t chunk_bytes,
                   ChunkSizes sizes) {
  for (const DType dtype : kDTypes) {
    const int64_t full = ChunkElements(dtype, chunk_bytes);
    const int64_t count = elements[static_cast<size_t>(dtype)];
    if (count >= full) {
      sizes.Add({.dtype = dtype, .count = full}, count / full);
    }
    if (count % full > 0) {
      sizes.Add({.dtype = dtype, .count = count % full}, 1);
    }
  }
  return sizes;
}

// A plan, and the chunk_bytes to cut with.
struct Choice {
  OptimizerPlan plan;
  int64_t chunk_bytes = 0;
};

absl::StatusOr<Choice> Choose(absl::Span<const ParameterSpec> parameters,
                              const OptimizerOptions& options,
                              int64_t host_budget_bytes,
                              absl::Span<const Chunk> existing, size_t first) {
  TERRACE_RETURN_IF_ERROR(CheckParameters(parameters));
  TERRACE_RETURN_IF_ERROR(CheckOptions(options));
  ChunkSizes before;
  for (const Chunk& chunk : existing) before.Add(chunk, 1);
  ElementCounts elements = {};
  Choice choice;
  OptimizerPlan& plan = choice.plan;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const DType dtype = parameters[i].dtype;
    const int64_t count = parameters[i].count;
    plan.parameters += count;
    plan.state_bytes += count * (dtype == DType::kFloat32 ? 8 : 12);
    if (i >= first) elements[static_cast<size_t>(dtype)] += count;
  }
  const ChunkSizes smallest = SizesOf(elements, kSmallestChunkBytes, before);
  plan.minimum_budget_bytes =
      WindowBytes(smallest.largest_payload_bytes,
                  static_cast<int>(std::min(kMinimumSlots, smallest.chunks)));
  for (const Candidate& candidate :
       Candidates(options, host_budget_bytes, plan.state_bytes)) {
    const ChunkSizes sizes = SizesOf(elements, candidate.chunk_bytes, before);
    plan.slots = SlotsWithin(sizes.largest_payload_bytes,
                             std::min(candidate.most_slots, sizes.chunks),
                             candidate.limit_bytes);
    if (plan.slots < std::min(candidate.least_slots, sizes.chunks)) continue;
    plan.chunks = sizes.chunks;
    plan.chunk_bytes = sizes.largest_payload_bytes;
    plan.disk_bytes = sizes.disk_bytes;
    plan.window_bytes =
        WindowBytes(plan.chunk_bytes, static_cast<int>(plan.slots));
    choice.chunk_bytes = candidate.chunk_bytes;
    return choice;
  }
  const bool budget = host_budget_bytes < plan.minimum_budget_bytes;
  return absl::ResourceExhaustedError(absl::StrCat(
      "optimizer '", options.name, "': a ", budget ? "budget" : "window",
      " of ", budget ? host_budget_bytes : options.window_bytes,
      " bytes is below the minimum of ", plan.minimum_budget_bytes, " bytes"));
}

}  // namespace

int64_t ChunkElements(DType dtype, int64_t chunk_bytes) {
  const int64_t element_bytes = dtype == DType::kFloat32 ? 8 : 12;
  return RoundDown((chunk_bytes - kTensorHeaderBytes) / element_bytes,
                   kChunkGranule);
}

std::vector<Chunk> CutIntoChunks(absl::Span<const ParameterSpec> parameters,
                                 int64_t chunk_bytes, size_t first) {
  TERRACE_CHECK(chunk_bytes >= kSmallestChunkBytes);
  std::vector<Chunk> chunks;
  int64_t place = 0;
  for (size_t i = 0; i < first; ++i) place += parameters[i].count;
  for (const DType dtype : kDTypes) {
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

absl::StatusOr<OptimizerPlan> PlanSizes(
    absl::Span<const ParameterSpec> parameters, const OptimizerOptions& options,
    int64_t host_budget_bytes) {
  TERRACE_ASSIGN_OR_RETURN(const Choice choice,
                           Choose(parameters, options, host_budget_bytes,
                                  /*existing=*/{}, /*first=*/0));
  return choice.plan;
}

absl::StatusOr<ChunkPlan> PlanChunks(absl::Span<const ParameterSpec> parameters,
                                     const OptimizerOptions& options,
                                     int64_t host_budget_bytes,
                                     absl::Span<const Chunk> existing,
                                     size_t first) {
  TERRACE_ASSIGN_OR_RETURN(
      const Choice choice,
      Choose(parameters, options, host_budget_bytes, existing, first));
  return ChunkPlan{choice.plan,
                   CutIntoChunks(parameters, choice.chunk_bytes, first)};
}

}  // namespace terrace
