#include <cstdio>
#include <vector>

#include "absl/time/clock.h"
#include "terrace/optimizer.h"
#include "terrace/runtime.h"

absl::Status Train(const char* path) {
  terrace::Options options;
  options.host_budget_bytes = 24 << 20;
  options.paths = {path};
  auto runtime = terrace::Runtime::Create(options);
  if (!runtime.ok()) return runtime.status();

  // 10 million weights: 80 MB of AdamW state, of which 24 MiB may stay.
  std::vector<float> weights(10'000'000, 1.0f), gradients(weights.size(), 0.5f);
  auto optimizer = terrace::OffloadedOptimizer::Create(
      **runtime, {{"weights", terrace::DType::kFloat32, 10'000'000}}, {});
  if (!optimizer.ok()) return optimizer.status();

  absl::Status status;
  for (int step = 0; step < 3 && status.ok(); ++step) {
    status =
        (*optimizer)
            ->Step({.learning_rate = 0.1}, {{weights.data(), gradients.data()}},
                   absl::Now() + absl::Minutes(1));
  }
  const terrace::Stats stats = (*runtime)->GetStats();
  std::printf("weight %.4f; %.0f MB read, %.0f MB written\n", weights.back(),
              stats.bytes_read() / 1e6, stats.bytes_written() / 1e6);
  return status;
}

int main(int, char** argv) {
  const absl::Status status = Train(argv[1]);
  if (!status.ok()) std::puts(status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
