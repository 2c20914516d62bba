// The whole runtime as an ordinary user of an ordinary distribution, with 8 MiB
// of memory to lock: what the kernel refuses costs the registration of that
// memory and nothing else. Each in a child, as a user cannot be undone.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "aio/engine.h"
#include "gtest/gtest.h"
#include "terrace/optimizer.h"
#include "terrace/runtime.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/support/own_child.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int kSkipped = 77;

bool HasRings() { return MakeEngine(EngineKind::kUring).ok(); }

// Empty: all as it should be.
std::string Train(const std::string& directory, int64_t budget_bytes,
                  bool registers) {
  Options options;
  options.host_budget_bytes = budget_bytes;
  options.paths = {directory};
  options.threads = 2;
  options.huge_pages = HugePages::kOff;
  const auto runtime = Runtime::Create(options);
  if (!runtime.ok()) return runtime.status().ToString();
  const Stats stats = (*runtime)->GetStats();
  const bool names_limit =
      stats.engine_reason.find("ENOMEM") != std::string::npos;
  if (stats.engine != "io_uring" ||
      stats.host.buffers_registered != registers || names_limit == registers) {
    return absl::StrCat(stats.engine, ": ", stats.engine_reason);
  }
  Model model = Model::Of({{"weights", DType::kFloat32, 4 * kMiB}}, 7);
  ReferenceOptimizer reference(model, {});
  const auto optimizer =
      OffloadedOptimizer::Create(**runtime, model.specs(), {});
  if (!optimizer.ok()) return optimizer.status().ToString();
  for (int64_t step = 1; step <= 3; ++step) {
    model.DrawGradients(step);
    reference.Step({}, model);
    const absl::Status status =
        (*optimizer)->Step({}, model.data(), absl::Now() + absl::Seconds(60));
    if (!status.ok()) return status.ToString();
  }
  const int64_t read = (*runtime)->GetStats().bytes_read();
  if (read < 32 * kMiB) return "nothing was read";
  return reference.Difference(model);
}

void TrainAsAnOrdinaryUser(int64_t budget_bytes, bool registers) {
  const TemporaryDirectory directory;
  if (geteuid() == 0) {
    if (chown(directory.path().c_str(), kNobody, kNobody) != 0) {
      GTEST_SKIP() << "there is no other user here";
    }
  }
  const int code = ExitCodeInChild([&] {
    if (!BecomeAUserWhoMayLock(8 * kMiB) || !HasRings()) std::_Exit(kSkipped);
    const std::string wrong = Train(directory.path(), budget_bytes, registers);
    std::fprintf(stderr, "%s\n", wrong.c_str());
    std::_Exit(wrong.empty() ? 0 : 1);
  });
  if (code == kSkipped) GTEST_SKIP() << "no ring, or no limit";
  EXPECT_EQ(code, 0);
}

TEST(OrdinaryUser, TrainsOnARingWithMoreMemoryThanMayBeLocked) {
  TrainAsAnOrdinaryUser(12 * kMiB, /*registers=*/false);
}

TEST(OrdinaryUser, RegistersWhatMayBeLocked) {
  TrainAsAnOrdinaryUser(4 * kMiB, /*registers=*/true);
}

}  // namespace
}  // namespace terrace
