// terrace: what this machine can do, by a shell.
#include <cstdio>
#include <string>
#include <vector>

#include "daemon/cli/commands.h"
#include "terrace/version.h"

namespace terrace::cli {
namespace {

struct Subcommand {
  const char* name;
  const char* arguments;
  const char* sentence;
  int (*run)(const std::vector<std::string>& arguments);
};

constexpr Subcommand kSubcommands[] = {
    {"doctor", "[PATH...] [--tier TIER]... [--config FILE] [--json]",
     "what this machine can do, what is missing, and the command that mends it",
     RunDoctor},
    {"tune", "[PATH...] [--tier TIER]... [--out FILE] [--check] [--json]",
     "measure this machine and write what was found, or check what was written",
     RunTune},
    {"status", "[--daemon ADDRESS] [--json]",
     "how this host's daemon is, what its tiers hold, who is connected",
     RunStatus},
    {"top", "[--daemon ADDRESS] [--once] [--json]",
     "what each job has of each tier and what it moves, again and again",
     RunTop},
    {"ls", "[--daemon ADDRESS] [--json]",
     "the tensors of your jobs, where each is and how", RunList},
    {"evict",
     "JOB [--user USER] [--pid PID] [--daemon ADDRESS] [--timeout SECONDS] "
     "[--json]",
     "what nobody has pinned of a job leaves memory, written back first",
     RunEvict},
    {"drain", "[--daemon ADDRESS] [--deadline SECONDS] [--json]",
     "no new jobs; those that are there go on, or end by the deadline",
     RunDrain},
    {"bench", "...", "measure: the same as terrace-bench ...", RunBench},
};

void PrintUsage(std::FILE* out) {
  std::fprintf(out,
               "usage: terrace SUBCOMMAND [ARGUMENT]...\n"
               "       terrace --version | --help\n");
  for (const Subcommand& subcommand : kSubcommands) {
    std::fprintf(out, "  %s %s\n        %s\n", subcommand.name,
                 subcommand.arguments, subcommand.sentence);
  }
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    PrintUsage(stderr);
    return kBadUsage;
  }
  if (arguments[0] == "--help" || arguments[0] == "-h") {
    PrintUsage(stdout);
    return kSuccess;
  }
  if (arguments[0] == "--version") {
    std::printf("terrace %s\n", kVersion);
    return kSuccess;
  }
  for (const Subcommand& subcommand : kSubcommands) {
    if (arguments[0] != subcommand.name) continue;
    const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    // The benchmarks have a help of their own.
    if (subcommand.run != RunBench && !rest.empty() && rest[0] == "--help") {
      std::printf("usage: terrace %s %s\n%s\n", subcommand.name,
                  subcommand.arguments, subcommand.sentence);
      return kSuccess;
    }
    return subcommand.run(rest);
  }
  std::fprintf(stderr, "terrace: no subcommand '%s'\n", arguments[0].c_str());
  PrintUsage(stderr);
  return kBadUsage;
}

}  // namespace

}  // namespace terrace::cli

int main(int argc, char** argv) {
  return terrace::cli::Main({argv + 1, argv + argc});
}
