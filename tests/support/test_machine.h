// What the mover's parts stand on, for tests: disks of memory behind a plan of
// faults, virtual time, and executors whose tasks run when the test says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "aio/io_paths.h"
#include "base/check.h"
#include "policies/eviction.h"
#include "runtime/mover/core.h"
#include "tests/support/fault_engine.h"
#include "tests/support/inline_executor.h"
#include "tests/support/manual_clock.h"
#include "tests/support/medium/fake_hbm.h"
#include "tests/support/medium/far_memory.h"
#include "tests/support/scripted_disk_file.h"
#include "tiers/memory/page_buffer.h"

namespace terrace {

inline constexpr int64_t kPage = 4096;

struct TestMachineOptions {
  int64_t budget_bytes = 64 * kPage;
  int far = 0;  // tiers of far memory, above the paths
  int64_t far_bytes = 64 * kPage;
  int64_t hbm_bytes = 0;  // a device's; 0: there is none
  int paths = 2;
  // Of each path: what its file has, and how far it grows.
  int64_t path_bytes = 64 * kPage;
  int64_t most_path_bytes = 64 * kPage;
  absl::Duration io_timeout = absl::Seconds(1);
  IoQueueOptions io;
};

struct TestMachine {
  explicit TestMachine(const TestMachineOptions& of)
      : options(of),
        faults(std::make_shared<FaultPlan>()),
        memory(of.budget_bytes),
        background(static_cast<size_t>(of.paths)) {
    for (int i = 0; i < of.far; ++i) {
      far.push_back(std::make_shared<FarMemory>(absl::StrCat("node", i + 1),
                                                of.far_bytes));
    }
  }

  absl::Span<std::byte> arena() const {
    return {reinterpret_cast<std::byte*>(memory.data()),
            static_cast<size_t>(options.budget_bytes)};
  }

  std::unique_ptr<IoPaths> MakeIo() {
    auto io = std::make_unique<IoPaths>(
        MakeFaultEngine(
            MakeMemoryEngine(options.paths, options.most_path_bytes, clock),
            faults, clock),
        clock);
    for (int path = 0; path < options.paths; ++path) {
      const auto added =
          io->AddPath(absl::StrCat("disk", path, "/state"), path, options.io);
      TERRACE_CHECK(added.ok() && *added == path);
    }
    return io;
  }

  std::unique_ptr<DiskFile> MakeFile(int path) {
    auto file = std::make_unique<ScriptedDiskFile>(path, options.path_bytes,
                                                   options.most_path_bytes);
    files.push_back(file.get());
    return file;
  }

  // `priors`: one for each path, or none.
  CoreParts MakeParts(const std::vector<PathPrior>& priors,
                      Transcript* transcript) {
    CoreParts parts;
    parts.clock = &clock;
    parts.executor = &executor;
    parts.arena = arena();
    parts.io = MakeIo();
    for (const auto& medium : far) {
      parts.mapped.push_back(
          {.spec = {TierKind::kFar, medium->bytes.name(), options.far_bytes},
           .medium = MediumOf(medium),
           .background = &far_background});
    }
    for (int path = 0; path < options.paths; ++path) {
      const auto k = static_cast<size_t>(path);
      parts.paths.push_back({MakeFile(path),
                             priors.empty() ? PathPrior() : priors[k],
                             &background[k]});
    }
    parts.eviction = MakeNextUsePolicy();
    parts.io_timeout = options.io_timeout;
    parts.transcript = transcript;
    if (options.hbm_bytes > 0) {
      hbm = std::make_unique<FakeHbm>(options.hbm_bytes);
      parts.devices.push_back(
          hbm->MakeDevice(executor, clock, MakeNextUsePolicy()));
    }
    return parts;
  }

  const TestMachineOptions options;
  VirtualClock clock;
  const std::shared_ptr<FaultPlan> faults;
  PageBuffer memory;
  InlineExecutor executor;
  std::vector<std::shared_ptr<FarMemory>> far;
  InlineExecutor far_background;
  std::unique_ptr<FakeHbm> hbm;
  std::deque<InlineExecutor> background;  // per path
  std::vector<ScriptedDiskFile*> files;  // in the order of MakeFile; the tiers'
};

}  // namespace terrace
