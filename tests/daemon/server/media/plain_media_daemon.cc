// terraced, but that far memory is memory of any node, and persistent memory
// any file: as a machine has that has neither.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "daemon/cli/arguments.h"
#include "daemon/jobs/media/medium_source.h"
#include "daemon/log/log.h"
#include "daemon/server/daemon.h"
#include "daemon/server/service_manager.h"
#include "daemon/server/signals.h"
#include "tiers/memory/far_medium.h"
#include "tiers/pmem/pmem_medium.h"

namespace terrace {
namespace {

PmemOptions PmemOf(const TierSpec& tier) {
  return {.place = tier.place,
          .budget_bytes = tier.budget_bytes,
          .grows = true,
          .unsafe_media = true};
}

class PlainMedia final : public MediumSource {
 public:
  absl::StatusOr<std::unique_ptr<Medium>> Open(const TierSpec& tier,
                                               bool outlives) const override {
    if (tier.kind == TierKind::kPmem) return PmemMedium::Open(PmemOf(tier));
    TERRACE_ASSIGN_OR_RETURN(
        std::unique_ptr<HostArena> arena,
        HostArena::Create(
            {.growth_bytes = tier.budget_bytes, .shared = outlives}));
    return std::make_unique<FarMedium>(tier.place, std::move(arena),
                                       tier.budget_bytes);
  }
  absl::StatusOr<std::unique_ptr<Medium>> Reopen(
      const TierSpec& tier, KeptMedium kept, int64_t used_bytes,
      absl::Time deadline) const override {
    if (tier.kind == TierKind::kPmem) {
      return PmemMedium::Reopen(PmemOf(tier), std::move(kept), used_bytes,
                                deadline);
    }
    return FarMedium::Reopen(
        {.node = NodeOf(tier), .budget_bytes = tier.budget_bytes},
        std::move(kept), used_bytes);
  }
};

absl::Status Serve(cli::Arguments arguments) {
  const auto loops = std::make_shared<LoopTable>();
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Log> log,
                           Log::Create(/*journal_stream=*/nullptr, *loops));
  TERRACE_ASSIGN_OR_RETURN(ServiceManager manager,
                           ServiceManager::OfEnvironment());
  DaemonOptions options;
  options.config_file = arguments.options["config"];
  options.socket = arguments.options["socket"];
  options.media = std::make_shared<PlainMedia>();
  TERRACE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Daemon> daemon,
      Daemon::Start(std::move(options), std::move(manager), log.get(), loops));
  Signals signals;
  return daemon->Run(&signals);
}

int Main(const std::vector<std::string>& words) {
  Signals::IgnoreAtFirst();
  absl::StatusOr<cli::Arguments> arguments =
      cli::ParseArguments(words, {}, {"config", "socket"});
  const absl::Status ended =
      arguments.ok() ? Serve(*std::move(arguments)) : arguments.status();
  if (ended.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "%s\n", ended.ToString().c_str());
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  return terrace::Main({argv + 1, argv + argc});
}
