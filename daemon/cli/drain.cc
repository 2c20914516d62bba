#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/daemon_question.h"
#include "daemon/cli/printable.h"

namespace terrace::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostSeconds = 31 * 24 * 3600;

// InvalidArgument: it is no number of seconds.
absl::StatusOr<DrainRequest> RequestOf(const Arguments& arguments) {
  DrainRequest request;
  if (!arguments.Has("deadline")) return request;
  const std::string& text = arguments.options.at("deadline");
  if (absl::SimpleAtoi(text, &request.seconds) && request.seconds >= 0 &&
      request.seconds <= kMostSeconds) {
    return request;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--deadline is 0 to ", kMostSeconds, " seconds; not '", text, "'"));
}

std::string TextOf(const DaemonStatus& status, bool is_json) {
  int64_t processes = 0;
  for (const DaemonStatus::Job& each : status.jobs) processes += each.processes;
  if (!is_json) {
    return absl::StrCat(Printable(status.phase), ": ", processes,
                        " processes of jobs are still here\n");
  }
  const Json json = {
      {"format", 1}, {"phase", status.phase}, {"processes", processes}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

int RunDrain(const std::vector<std::string>& words) {
  const absl::StatusOr<Arguments> arguments =
      ParseDaemonArguments(words, {"json"}, {"deadline"});
  const absl::StatusOr<DrainRequest> request =
      arguments.ok() ? RequestOf(*arguments) : arguments.status();
  if (!request.ok()) {
    PrintError("drain", std::string(request.status().message()));
    return kBadUsage;
  }
  const absl::StatusOr<DaemonStatus> status =
      AskDaemon<DaemonStatus>(*arguments, *request);
  if (!status.ok()) {
    PrintError("drain", std::string(status.status().message()));
    return kFailure;
  }
  const std::string text = TextOf(*status, arguments->Has("json"));
  return PrintText("drain", text) ? kSuccess : kFailure;
}

}  // namespace terrace::cli
