#include "bench/hook/placement_bench.h"

#include <c10/core/Allocator.h>

#include <ctime>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "bench/harness.h"
#include "terrace/torch/placement.h"

namespace terrace::bench {
namespace {

constexpr int kAllocations = 1'000'000;
constexpr size_t kBytes = 64;

double ThreadNanoseconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec);
}

// Nanoseconds of one allocation with its end.
double Measure() {
  c10::Allocator& allocator = *c10::GetAllocator(c10::DeviceType::CPU);
  const double start = ThreadNanoseconds();
  for (int i = 0; i < kAllocations; ++i) {
    const c10::DataPtr made = allocator.allocate(kBytes);
    // The compiler may not leave it out.
    asm volatile("" : : "r"(made.get()) : "memory");
  }
  return (ThreadNanoseconds() - start) / kAllocations;
}

}  // namespace

absl::Status RunAllocations(int64_t rounds, bool json) {
  std::vector<double> own;
  std::vector<double> added;
  for (int64_t round = 0; round <= rounds; ++round) {
    const double without = Measure();
    TERRACE_RETURN_IF_ERROR(PlacementAllocator::Install());
    const double with = Measure();
    TERRACE_RETURN_IF_ERROR(PlacementAllocator::Uninstall());
    if (round == 0) continue;  // warms up
    own.push_back(without);
    added.push_back(with - without);
  }
  const Spread alone = SpreadOf(own);
  const Spread more = SpreadOf(added);
  if (json) {
    absl::PrintF(
        "{\"allocation_ns\":[%.2f,%.2f,%.2f],\"added_ns\":[%.2f,%.2f,%.2f]}\n",
        alone.minimum, alone.median, alone.maximum, more.minimum, more.median,
        more.maximum);
  } else {
    absl::PrintF(
        "an allocation of %d bytes and its end: %.1f ns; with the allocator of "
        "placements, outside of scopes, %+.2f ns (%+.2f to %+.2f)\n",
        kBytes, alone.median, more.median, more.minimum, more.maximum);
  }
  return absl::OkStatus();
}

}  // namespace terrace::bench
