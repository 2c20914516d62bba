// What a job's runtimes have in memory leaves it.
#include <pwd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/daemon_question.h"
#include "daemon/cli/printable.h"

namespace terrace::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostSeconds = 3600;

struct Part {
  const char* name;
  Evicted::Part Evicted::*part;
};
// As --json names them, and the columns.
constexpr Part kParts[] = {
    {"evicted", &Evicted::gone},      {"pinned", &Evicted::pinned},
    {"moving", &Evicted::moving},     {"wanted", &Evicted::wanted},
    {"window", &Evicted::in_windows}, {"unwritten", &Evicted::unwritten}};

// A name or a number. InvalidArgument: the host knows no such user.
absl::StatusOr<int64_t> UserOf(const std::string& text) {
  uint32_t uid = 0;
  if (absl::SimpleAtoi(text, &uid)) return int64_t{uid};
  errno = 0;
  const passwd* const found = getpwnam(text.c_str());
  if (found != nullptr) return int64_t{found->pw_uid};
  return absl::InvalidArgumentError(
      absl::StrCat("--user is a user's name or number; not '", text, "'"));
}

absl::StatusOr<EvictionRequest> RequestOf(const Arguments& arguments) {
  EvictionRequest request{.job = arguments.words.front()};
  if (arguments.Has("user")) {
    TERRACE_ASSIGN_OR_RETURN(request.uid, UserOf(arguments.options.at("user")));
  }
  if (arguments.Has("pid")) {
    const std::string& text = arguments.options.at("pid");
    if (!absl::SimpleAtoi(text, &request.process) || request.process <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--pid is a process's number; not '", text, "'"));
    }
  }
  if (arguments.Has("timeout")) {
    const std::string& text = arguments.options.at("timeout");
    int64_t seconds = 0;
    const bool is_one = absl::SimpleAtoi(text, &seconds) && seconds >= 0 &&
                        seconds <= kMostSeconds;
    if (!is_one) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--timeout is 0 to ", kMostSeconds, " seconds; not '", text, "'"));
    }
    request.timeout_ms = seconds * 1000;
  }
  return request;
}

std::string TextOf(const EvictionReport& report) {
  std::string out = "process";
  for (const Part& each : kParts) absl::StrAppend(&out, "\t", each.name);
  out += "\n";
  for (const EvictionReport::Process& process : report.processes) {
    if (!process.fault.empty()) continue;
    absl::StrAppend(&out, process.process);
    for (const Part& each : kParts) {
      absl::StrAppend(&out, "\t",
                      FormatBytes((process.evicted.*each.part).bytes));
    }
    out += "\n";
  }
  return out;
}

std::string JsonOf(const EvictionReport& report) {
  Json processes = Json::array();
  for (const EvictionReport::Process& process : report.processes) {
    Json json = {{"process", process.process}};
    for (const Part& each : kParts) {
      const Evicted::Part& part = process.evicted.*each.part;
      json[absl::StrCat(each.name, "_bytes")] = part.bytes;
      json[absl::StrCat(each.name, "_tensors")] = part.tensors;
    }
    json["fault"] = process.fault.empty() ? Json() : Json(process.fault);
    processes.push_back(std::move(json));
  }
  const Json json = {{"format", 1},
                     {"uid", report.uid},
                     {"job", report.job},
                     {"processes", std::move(processes)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

int RunEvict(const std::vector<std::string>& words) {
  const absl::StatusOr<Arguments> arguments =
      ParseDaemonArguments(words, {"json"}, {"user", "pid", "timeout"}, "job");
  const absl::StatusOr<EvictionRequest> request =
      arguments.ok() ? RequestOf(*arguments) : arguments.status();
  if (!request.ok()) {
    PrintError("evict", std::string(request.status().message()));
    return kBadUsage;
  }
  const absl::StatusOr<EvictionReport> report = AskDaemon<EvictionReport>(
      *arguments, *request,
      absl::Milliseconds(request->timeout_ms) + kAnswerPatience);
  if (!report.ok()) {
    PrintError("evict", std::string(report.status().message()));
    return kFailure;
  }
  bool is_whole = true;
  for (const EvictionReport::Process& each : report->processes) {
    if (each.fault.empty()) continue;
    PrintError("evict",
               absl::StrCat("process ", each.process, ": ", each.fault));
    is_whole = false;
  }
  const std::string text =
      arguments->Has("json") ? JsonOf(*report) : TextOf(*report);
  return PrintText("evict", text) && is_whole ? kSuccess : kFailure;
}

}  // namespace terrace::cli
