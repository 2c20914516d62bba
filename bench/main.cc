// terrace-bench: one subcommand for each question.
#include <cstdio>
#include <string>
#include <vector>

#include "bench/adam_bench.h"
#include "bench/daemon/cost.h"
#include "bench/daemon/shared_disk.h"
#include "bench/device_bench.h"
#include "bench/harness.h"
#include "bench/io/io.h"
#include "bench/mover_bench.h"
#include "bench/offline/offline.h"
#include "bench/step.h"
#include "bench/step_device.h"
#include "bench/step_disk.h"
#include "bench/step_paths.h"
#include "bench/tiers.h"

namespace terrace::bench {
namespace {

// Key, what it answers, its flags, its function.
const Subcommand kSubcommands[] = {
    {"io",
     "disk I/O beside raw loops, libaio and, with --peer fio, fio",
     {"path", "size", "rounds", "samples", "engine", "sections", "peer", "gate",
      "json", "report", "markdown", "results"},
     RunIoBenchmark},
    {"adam",
     "the optimizer's kernels against the speed of memory",
     {"parameters", "rounds", "threads", "json"},
     RunAdamBenchmark},
    {"step",
     "a step on a paced device against the slower of bytes and compute; with "
     "--path on a disk, against a raw loop",
     {"path", "parameters", "budget", "rounds", "threads", "gate", "json"},
     [](const Flags& flags) {
       return flags.has("path") ? RunStepOnDisk(flags)
                                : RunStepBenchmark(flags);
     }},
    {"mover",
     "the mover alone: registering, bytes a tensor, time a transfer",
     {"path", "rounds"},
     RunMoverBenchmark},
    {"offline",
     "the bytes that a runtime would move over a trace if it knew all uses: "
     "farthest next use, from the third step on",
     {"trace", "budget", "reserved", "rounds", "json"},
     RunOffline},
    {"paths",
     "a step over two paced devices of 3:1, also when one slows to half",
     {"parameters", "rounds", "gate", "json"},
     RunStepPathsBenchmark},
    {"tiers",
     "copies between DRAM and a tier, of memory or --tier's, against the least "
     "that moves the bytes; a demand beside copies and kernels; a step over "
     "paced tiers, against the sum of their rates",
     {"tier", "unsafe-media", "size", "parameters", "path", "paced", "rounds",
      "threads", "gate", "json"},
     RunTiersBenchmark},
    {"device",
     "copies between DRAM and a GPU's tier, against cudaMemcpyAsync; of "
     "--device threads, which play one, against their streams",
     {"device", "size", "rounds", "gate", "json"},
     RunDeviceBenchmark},
    {"daemon",
     "what a job's process pays for a runtime in a daemon: a step and a fetch "
     "beside those of this process, the daemon's bytes a tensor, idle time",
     {"path", "parameters", "rounds", "tensors", "idle", "json"},
     RunDaemonCost},
    {"daemon-links",
     "jobs that share a disk of a daemon's at a pace in MB/s: their shares by "
     "weight, their sum, and demands beside one that floods",
     {"path", "pace", "window", "rounds", "json"},
     RunDaemonLinks},
    {"device-step",
     "a step over a GPU's memory, DRAM and a disk, against raw loops of the "
     "disk and the link",
     {"device", "path", "size", "rounds", "gate", "json"},
     RunStepOnDevice},
};

int Usage() {
  std::fprintf(stderr,
               "usage: terrace-bench SUBCOMMAND [--flag value]...\n"
               "       terrace-bench --report FILE [--flag value]...: as io\n");
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
  // A report is the I/O benchmark's.
  std::vector<char*> words(argv, argv + argc);
  char io[] = "io";
  if (std::string(words[1]).rfind("--report", 0) == 0) {
    words.insert(words.begin() + 1, io);
  }
  const int count = static_cast<int>(words.size());
  for (const Subcommand& subcommand : kSubcommands) {
    if (std::string(words[1]) != subcommand.key) continue;
    absl::StatusOr<Flags> flags =
        Flags::Parse(count - 2, words.data() + 2, subcommand.flags);
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
