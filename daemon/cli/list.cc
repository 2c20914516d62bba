// The tensors of jobs, as their runtimes in the daemon have them.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/daemon_question.h"
#include "daemon/client/control_client.h"

namespace terrace::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kPatience = absl::Seconds(10);

const char* StateName(TensorState state) {
  switch (state) {
    case TensorState::kUnwritten:
      return "unwritten";
    case TensorState::kClean:
      return "clean";
    case TensorState::kDirty:
      return "dirty";
    case TensorState::kMoving:
      return "moving";
    case TensorState::kPinned:
      return "pinned";
    case TensorState::kLost:
      break;
  }
  return "lost";
}

std::string JsonOf(const TensorsPage& page) {
  std::string out;
  for (const ListedTensor& each : page.tensors) {
    const Json json = {{"uid", page.uid},
                       {"job", page.job},
                       {"process", page.process},
                       {"id", each.id.value},
                       {"name", each.name},
                       {"size_bytes", each.size_bytes},
                       {"tier", each.tier.empty() ? Json() : Json(each.tier)},
                       {"state", StateName(each.state)}};
    absl::StrAppend(
        &out, json.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
  }
  return out;
}

// Names are the job's to choose: no terminal is to obey them.
std::string TextOf(const TensorsPage& page) {
  std::string out;
  for (const ListedTensor& each : page.tensors) {
    absl::StrAppend(&out, page.job.empty() ? "-" : absl::CEscape(page.job),
                    "\t", page.process, "\t", FormatBytes(each.size_bytes),
                    "\t", each.tier.empty() ? "-" : absl::CEscape(each.tier),
                    "\t", StateName(each.state), "\t", absl::CEscape(each.name),
                    "\n");
  }
  return out;
}

absl::StatusOr<TensorsPage> AskPage(PacketSocket& socket,
                                    const TensorsRequest& request) {
  TERRACE_ASSIGN_OR_RETURN(
      Answered answered,
      AskOver(socket, request, SystemClock().Now() + kPatience));
  if (auto* const page = std::get_if<TensorsPage>(&answered.body)) {
    return std::move(*page);
  }
  return absl::InternalError("the daemon answered with something else");
}

// Page by page. What is missing is told, and the rest is listed.
absl::Status List(const Arguments& arguments, bool* is_whole) {
  TERRACE_ASSIGN_OR_RETURN(PacketSocket socket, ConnectToDaemon(arguments));
  const bool is_json = arguments.Has("json");
  if (!is_json &&
      !PrintText("ls", "job\tprocess\tbytes\ttier\tstate\tname\n")) {
    *is_whole = false;
    return absl::OkStatus();
  }
  for (TensorsRequest request; request.session >= 0;) {
    TERRACE_ASSIGN_OR_RETURN(const TensorsPage page, AskPage(socket, request));
    if (!page.fault.empty()) {
      PrintError("ls", page.fault);
      *is_whole = false;
    }
    if (!PrintText("ls", is_json ? JsonOf(page) : TextOf(page))) {
      *is_whole = false;
      return absl::OkStatus();
    }
    request = {page.next_session, page.next_after};
  }
  return absl::OkStatus();
}

}  // namespace

int RunList(const std::vector<std::string>& words) {
  const absl::StatusOr<Arguments> arguments =
      ParseDaemonArguments(words, {"json"});
  if (!arguments.ok()) {
    PrintError("ls", std::string(arguments.status().message()));
    return kBadUsage;
  }
  bool is_whole = true;
  const absl::Status listed = List(*arguments, &is_whole);
  if (!listed.ok()) PrintError("ls", std::string(listed.message()));
  return listed.ok() && is_whole ? kSuccess : kFailure;
}

}  // namespace terrace::cli
