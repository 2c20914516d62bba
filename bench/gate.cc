#include "bench/gate.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "base/status_macros.h"
#include "bench/harness.h"

namespace terrace::bench {
namespace {

constexpr auto kMoment = std::chrono::milliseconds(250);
constexpr double kMomentSeconds = 0.25;
// Of all cores together, before a run; the rest is the grain of /proc/stat.
constexpr double kQuietShare = 0.12;
constexpr double kGrainSeconds = 0.02;
constexpr int64_t kQuietDiskBytes = 4 << 20;
// Cores, during a run.
constexpr double kForeignCores = 0.35;

// Busy or stolen, all cores together.
double BusySeconds() {
  std::ifstream file("/proc/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line);
  std::string cpu;
  fields >> cpu;
  // user nice system idle iowait irq softirq steal
  double ticks[8] = {};
  for (double& tick : ticks) fields >> tick;
  return (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7]) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Read and written by whole drives: what /sys/block names, less memory.
int64_t DiskBytes() {
  std::ifstream file("/proc/diskstats");
  int64_t sectors = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    int64_t major = 0;
    int64_t minor = 0;
    std::string name;
    int64_t values[7] = {};
    fields >> major >> minor >> name;
    for (int64_t& value : values) fields >> value;
    const bool is_memory =
        name.rfind("ram", 0) == 0 || name.rfind("zram", 0) == 0;
    const bool is_drive = access(("/sys/block/" + name).c_str(), F_OK) == 0;
    if (is_drive && !is_memory) sectors += values[2] + values[6];
  }
  return sectors * 512;
}

double UsedBy(int who) {
  rusage usage = {};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

double OwnCpuSeconds() { return UsedBy(RUSAGE_SELF) + UsedBy(RUSAGE_CHILDREN); }

bool Gate::AwaitQuiet() {
  const double limit = Seconds() + options_.max_wait_seconds;
  const double cores = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  while (true) {
    const double busy = BusySeconds() - OwnCpuSeconds();
    const int64_t moved = DiskBytes();
    std::this_thread::sleep_for(kMoment);
    const double foreign = BusySeconds() - OwnCpuSeconds() - busy;
    if (foreign < kQuietShare * kMomentSeconds * cores + kGrainSeconds &&
        DiskBytes() - moved < kQuietDiskBytes) {
      return true;
    }
    if (Seconds() > limit) return false;
  }
}

absl::Status Gate::Run(const std::function<absl::Status()>& body) {
  ++runs_;
  if (!options_.enabled) return body();
  for (int attempt = 0;; ++attempt) {
    const bool was_quiet = AwaitQuiet();
    const double start = Seconds();
    const double busy = BusySeconds() - OwnCpuSeconds();
    TERRACE_RETURN_IF_ERROR(body());
    const double foreign = BusySeconds() - OwnCpuSeconds() - busy;
    const double wall = Seconds() - start;
    if (was_quiet && foreign <= kForeignCores * wall + kGrainSeconds) {
      return absl::OkStatus();
    }
    // A machine that never falls silent is not waited for again and again.
    if (!was_quiet || attempt == options_.max_repeats) {
      ++disturbed_;
      return absl::OkStatus();
    }
    ++rejected_;
  }
}

}  // namespace terrace::bench
