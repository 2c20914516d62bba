// The subcommands of `terrace`. Each takes what follows its name and returns
// the program's exit code: 0, 1 (something necessary is missing, or it could
// not be done) or 2 (it was asked wrongly). One thread.
#pragma once

#include <string>
#include <vector>

#include "terrace/machine.h"

namespace terrace::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;
inline constexpr int kBadUsage = 2;

// doctor [PATH...] [--tier TIER]... [--config FILE] [--json]
int RunDoctor(const std::vector<std::string>& arguments);

// status [--daemon ADDRESS] [--json]
int RunStatus(const std::vector<std::string>& arguments);

// top [--daemon ADDRESS] [--once] [--json]: again and again until it is
// interrupted, or once.
int RunTop(const std::vector<std::string>& arguments);

// ls [--daemon ADDRESS] [--json]: with --json a line a tensor.
int RunList(const std::vector<std::string>& arguments);

// evict JOB [--user USER] [--pid PID] [--daemon ADDRESS] [--timeout SECONDS]
// [--json]
int RunEvict(const std::vector<std::string>& arguments);

// drain [--daemon ADDRESS] [--deadline SECONDS] [--json]
int RunDrain(const std::vector<std::string>& arguments);

// As terrace/tier.h has it. InvalidArgument, which names the text.
absl::StatusOr<std::vector<TierSpec>> ParseTiers(
    const std::vector<std::string>& texts);

// What `doctor` prints of a report without --json, of about `width` columns,
// verdict last.
std::string FormatReport(const MachineReport& report, int width);

// tune [PATH...] [--tier TIER]... [--out FILE] [--check] [--json]: measures and
// writes a profile, or says whether the one that is there still holds.
int RunTune(const std::vector<std::string>& arguments);

// bench ...: becomes terrace-bench, which lies beside this program. Returns
// only where it cannot.
int RunBench(const std::vector<std::string>& arguments);

// "terrace doctor: <message>" on standard error.
void PrintError(const std::string& subcommand, const std::string& message);
// To standard output, all of it; else the error is printed: false.
bool PrintText(const std::string& subcommand, const std::string& text);

}  // namespace terrace::cli
