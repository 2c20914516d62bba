// What each job has of a host's tiers, and what it moves.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/daemon_question.h"
#include "daemon/cli/printable.h"

namespace terrace::cli {
namespace {

using Json = nlohmann::ordered_json;

// Between two looks; and between the two of --once.
constexpr absl::Duration kPeriod = absl::Seconds(1);
constexpr absl::Duration kOnce = absl::Milliseconds(300);
constexpr char kClear[] = "\x1b[H\x1b[J";  // of a terminal

struct Look {
  DaemonStatus status;
  absl::Time at;
};

struct Rates {
  double up = 0;  // bytes a second
  double down = 0;
  double stalled = 0;  // seconds a second, of all queues together
};

// Since the look before; a job that is new, or began again, has moved all
// since.
Rates RatesOf(const DaemonStatus::Job& job, const Look& before,
              double seconds) {
  DaemonStatus::Job last;
  for (const DaemonStatus::Job& each : before.status.jobs) {
    if (each.uid == job.uid && each.name == job.name) last = each;
  }
  const auto rate = [seconds](double now, double then) {
    return (now >= then ? now - then : now) / seconds;
  };
  return {rate(static_cast<double>(job.bytes_up),
               static_cast<double>(last.bytes_up)),
          rate(static_cast<double>(job.bytes_down),
               static_cast<double>(last.bytes_down)),
          rate(job.stalled_seconds, last.stalled_seconds)};
}

int64_t FreeOf(const DaemonStatus::TierBytes& tier) {
  return std::max<int64_t>(
      tier.used_bytes - tier.pinned_bytes - tier.dirty_bytes - tier.clean_bytes,
      0);
}

// Rows in aligned columns, the first of which are texts.
class Columns {
 public:
  void Add(std::vector<std::string> row) {
    widths_.resize(std::max(widths_.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths_[i] = std::max(widths_[i], row[i].size());
    }
    rows_.push_back(std::move(row));
  }
  std::string Text(size_t texts) const {
    std::string out;
    for (const std::vector<std::string>& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string fill(widths_[i] - row[i].size(), ' ');
        if (i > 0) line += "  ";
        line += i < texts ? row[i] + fill : fill + row[i];
      }
      line.erase(line.find_last_not_of(' ') + 1);
      absl::StrAppend(&out, line, "\n");
    }
    return out;
  }

 private:
  std::vector<size_t> widths_;
  std::vector<std::vector<std::string>> rows_;
};

std::string RateText(double bytes_per_second) {
  return absl::StrCat(FormatBytes(static_cast<int64_t>(bytes_per_second)),
                      "/s");
}

std::string PercentText(double share) {
  return absl::StrCat(static_cast<int64_t>(share * 100 + 0.5), " %");
}

std::string TextOf(const Look& look, const Look& before) {
  const DaemonStatus& status = look.status;
  const double seconds = absl::ToDoubleSeconds(look.at - before.at);
  std::string out = absl::StrCat(
      "terraced ", Printable(status.version), ", pid ", status.pid, ", ",
      Printable(status.phase), ", ", status.loops, " loops\n");
  for (const DaemonStatus::Loop& each : status.stopped) {
    absl::StrAppend(&out, "stopped: ", Printable(each.name), "\n");
  }
  Columns tiers;
  tiers.Add({"tier", "used", "of"});
  for (const DaemonStatus::Tier& each : status.tiers) {
    tiers.Add({Printable(each.name), FormatBytes(each.used_bytes),
               FormatBytes(each.budget_bytes)});
  }
  Columns jobs;
  jobs.Add({"job", "tier", "uid", "used", "pinned", "dirty", "clean", "free",
            "up", "down", "stalled"});
  for (const DaemonStatus::Job& job : status.jobs) {
    const Rates rates = RatesOf(job, before, seconds);
    bool is_first = true;
    for (const DaemonStatus::TierBytes& tier : job.tiers) {
      std::vector<std::string> row = {
          job.name.empty() ? "-" : Printable(job.name),
          Printable(tier.name),
          absl::StrCat(job.uid),
          FormatBytes(tier.used_bytes),
          FormatBytes(tier.pinned_bytes),
          FormatBytes(tier.dirty_bytes),
          FormatBytes(tier.clean_bytes),
          FormatBytes(FreeOf(tier))};
      if (std::exchange(is_first, false)) {
        row.insert(row.end(), {RateText(rates.up), RateText(rates.down),
                               PercentText(rates.stalled)});
      }
      jobs.Add(std::move(row));
    }
  }
  return absl::StrCat(out, "\n", tiers.Text(1), "\n", jobs.Text(2));
}

std::string JsonOf(const Look& look, const Look& before) {
  const DaemonStatus& status = look.status;
  const double seconds = absl::ToDoubleSeconds(look.at - before.at);
  Json tiers = Json::array();
  for (const DaemonStatus::Tier& each : status.tiers) {
    tiers.push_back({{"name", each.name},
                     {"budget_bytes", each.budget_bytes},
                     {"used_bytes", each.used_bytes}});
  }
  Json jobs = Json::array();
  for (const DaemonStatus::Job& job : status.jobs) {
    Json parts = Json::array();
    for (const DaemonStatus::TierBytes& each : job.tiers) {
      parts.push_back({{"name", each.name},
                       {"used_bytes", each.used_bytes},
                       {"pinned_bytes", each.pinned_bytes},
                       {"dirty_bytes", each.dirty_bytes},
                       {"clean_bytes", each.clean_bytes},
                       {"free_bytes", FreeOf(each)}});
    }
    const Rates rates = RatesOf(job, before, seconds);
    jobs.push_back({{"uid", job.uid},
                    {"name", job.name},
                    {"processes", job.processes},
                    {"tiers", std::move(parts)},
                    {"bytes_up", job.bytes_up},
                    {"bytes_down", job.bytes_down},
                    {"up_bytes_per_second", rates.up},
                    {"down_bytes_per_second", rates.down},
                    {"stalled_share", rates.stalled}});
  }
  Json stopped = Json::array();
  for (const DaemonStatus::Loop& each : status.stopped) {
    stopped.push_back(each.name);
  }
  const Json json = {{"format", 1},
                     {"phase", status.phase},
                     {"seconds", seconds},
                     {"tiers", std::move(tiers)},
                     {"jobs", std::move(jobs)},
                     {"stopped", std::move(stopped)}};
  // A line each. Names of files may be any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Look> LookAt(const Arguments& arguments) {
  absl::StatusOr<DaemonStatus> status =
      AskDaemon<DaemonStatus>(arguments, StatusRequest());
  if (!status.ok()) return status.status();
  return Look{*std::move(status), SystemClock().Now()};
}

void Pause(absl::Duration time) {
  poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(time)));
}

}  // namespace

int RunTop(const std::vector<std::string>& words) {
  const absl::StatusOr<Arguments> arguments =
      ParseDaemonArguments(words, {"once", "json"});
  if (!arguments.ok()) {
    PrintError("top", std::string(arguments.status().message()));
    return kBadUsage;
  }
  const bool is_json = arguments->Has("json");
  const bool clears = !is_json && isatty(STDOUT_FILENO) == 1;
  // The first one has jobs' runtimes asked, and begins the rates.
  absl::StatusOr<Look> before = LookAt(*arguments);
  for (bool is_first = true; before.ok(); is_first = false) {
    Pause(is_first ? kOnce : kPeriod);
    absl::StatusOr<Look> look = LookAt(*arguments);
    if (!look.ok()) {
      before = look.status();
      break;
    }
    const std::string text =
        is_json ? JsonOf(*look, *before) : TextOf(*look, *before);
    if (!PrintText("top", (clears ? kClear : "") + text)) return kFailure;
    if (arguments->Has("once")) return kSuccess;
    before = std::move(look);
  }
  PrintError("top", std::string(before.status().message()));
  return kFailure;
}

}  // namespace terrace::cli
