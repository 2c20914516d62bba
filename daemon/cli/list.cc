// The tensors of jobs, as their runtimes in the daemon have them.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/daemon_question.h"
#include "daemon/cli/printable.h"

namespace terrace::cli {
namespace {

using Json = nlohmann::ordered_json;

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

std::string TextOf(const TensorsPage& page) {
  std::string out;
  for (const ListedTensor& each : page.tensors) {
    absl::StrAppend(&out, page.job.empty() ? "-" : Printable(page.job), "\t",
                    page.process, "\t", FormatBytes(each.size_bytes), "\t",
                    each.tier.empty() ? "-" : Printable(each.tier), "\t",
                    StateName(each.state), "\t", Printable(each.name), "\n");
  }
  return out;
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
    TERRACE_ASSIGN_OR_RETURN(const TensorsPage page,
                             AskOne<TensorsPage>(socket, request));
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
