// terrace-bench: one subcommand for each question.
#include <cstdio>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "bench/io.h"
#include "bench/kernels.h"
#include "bench/step.h"

namespace terrace::bench {
namespace {

// Key, what it answers, its flags, its function.
const Subcommand kSubcommands[] = {
    {"io",
     "what the I/O queue costs beside a minimal raw loop on one file",
     {"path", "size", "rounds", "engine", "piece", "window", "json"},
     RunIoBenchmark},
    {"adam",
     "the optimizer's kernels against the speed of memory",
     {"parameters", "rounds", "threads", "json"},
     RunAdamBenchmark},
    {"step",
     "a step on a paced device against the slower of bytes and compute",
     {"parameters", "budget", "rounds", "threads", "json"},
     RunStepBenchmark},
};

int Usage() {
  std::fprintf(stderr, "usage: terrace-bench SUBCOMMAND [--flag value]...\n");
  for (const Subcommand& subcommand : kSubcommands) {
    std::string flags;
    for (const std::string& flag : subcommand.flags) flags += " --" + flag;
    std::fprintf(stderr, "  %-6s %s\n        %s\n", subcommand.key,
                 subcommand.sentence, flags.c_str());
  }
  return 2;
}

int Main(int argc, char** argv) {
  if (argc < 2) return Usage();
  for (const Subcommand& subcommand : kSubcommands) {
    if (std::string(argv[1]) != subcommand.key) continue;
    absl::StatusOr<Flags> flags =
        Flags::Parse(argc - 2, argv + 2, subcommand.flags);
    const absl::Status status =
        flags.ok() ? subcommand.run(*flags) : flags.status();
    if (status.ok()) return 0;
    std::fprintf(stderr, "terrace-bench %s: %s\n", subcommand.key,
                 std::string(status.message()).c_str());
    return 1;
  }
  return Usage();
}

}  // namespace
}  // namespace terrace::bench

int main(int argc, char** argv) { return terrace::bench::Main(argc, argv); }
