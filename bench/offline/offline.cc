#include "bench/offline/offline.h"

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/offline/farthest_use.h"

namespace terrace::bench {
namespace {

constexpr int kWarmSteps = 2;  // a bar counts from the third step on

void Print(const char* key, int64_t budget_bytes, const OfflineTraffic& traffic,
           bool json) {
  const auto text = [](int64_t bytes) { return absl::StrCat(bytes); };
  std::printf(json ? "{\"row\": \"%s\", \"budget\": %s, \"read\": %s, "
                     "\"written\": %s, \"beyond\": %s}\n"
                   : "%-10s budget %15s  read %15s  written %15s  beyond %s\n",
              key, text(budget_bytes).c_str(), text(traffic.bytes_read).c_str(),
              text(traffic.bytes_written).c_str(),
              text(traffic.beyond_bytes).c_str());
}

}  // namespace

absl::Status RunOffline(const Flags& flags) {
  const std::string name = flags.text("trace", "");
  std::ifstream file(name);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) {
    return absl::NotFoundError(absl::StrCat("no trace '", name, "'"));
  }
  TERRACE_ASSIGN_OR_RETURN(const std::vector<Operation> trace,
                           ParseTrace(text.str()));
  TERRACE_ASSIGN_OR_RETURN(const int64_t budget, flags.number("budget", 0));
  TERRACE_ASSIGN_OR_RETURN(const int64_t reserved, flags.number("reserved", 0));
  TERRACE_ASSIGN_OR_RETURN(const int64_t steps, flags.number("rounds", 1));
  if (budget <= reserved || trace.empty() || steps < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a budget of ", budget, " bytes less ", reserved, ", ", trace.size(),
        " operations, ", steps, " steps: nothing to move"));
  }
  const bool json = flags.has("json");
  for (const int64_t bytes : {budget - reserved, budget}) {
    Print(bytes == budget ? "whole" : "less", bytes,
          FarthestNextUse(trace, bytes, kWarmSteps + static_cast<int>(steps),
                          kWarmSteps),
          json);
  }
  return absl::OkStatus();
}

}  // namespace terrace::bench
