#include "examples/train_gpt/speed_probe.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

namespace train_gpt {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kStreamElements = 4 << 20;  // 16 MiB: no cache holds three
constexpr int kPasses = 6;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

}  // namespace

double MeasureMemoryBytesPerSecond(int threads) {
  const size_t each = kStreamElements / static_cast<size_t>(threads) + 1;
  std::vector<float> a(each * threads), b(a.size(), 1.f), c(a.size(), 2.f);
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = SteadyClock::now();
    std::vector<std::thread> pool;
    for (int t = 0; t < threads; ++t) {
      pool.emplace_back([&, t] {
        const size_t end = (t + 1) * each;
        for (size_t i = t * each; i < end; ++i) a[i] = b[i] + 3.f * c[i];
      });
    }
    for (std::thread& thread : pool) thread.join();
    const double bytes = 3.0 * sizeof(float) * static_cast<double>(a.size());
    best = std::max(best, bytes / SecondsSince(start));
  }
  return best;
}

}  // namespace train_gpt
