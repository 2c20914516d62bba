#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/bytes.h"
#include "base/text/shell_word.h"
#include "machine/findings.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr char kListPmem[] =
    "ndctl list --namespaces  # then name a directory on one, mounted with "
    "-o dax=always";

bool IsMemory(const TierSpec& tier) {
  return tier.kind == TierKind::kDram || tier.kind == TierKind::kFar;
}

std::string Ask(const TierSpec& tier) {
  return absl::StrCat("terrace doctor --tier ", ShellWord(TierText(tier)),
                      "  # and name that");
}

// Another node in place of one that will not do, one without processors first;
// empty: there is none.
std::string AnotherNode(const TierSpec& tier, const MachineReport& report) {
  const NumaNodeReport* best = nullptr;
  for (const NumaNodeReport& node : report.processor.nodes) {
    if (node.index == NodeOf(tier)) continue;
    if (best == nullptr || (node.cpus.empty() && !best->cpus.empty())) {
      best = &node;
    }
  }
  if (best == nullptr) return "";
  return Ask({.kind = tier.kind, .place = absl::StrCat("node", best->index)});
}

std::string MendMemory(const TierReport& report, const MachineReport& machine) {
  // Either way nothing is known to be wrong with the node's place.
  if (!machine.processor.topology_error.empty() ||
      (report.size_bytes >= 0 && absl::IsUnavailable(report.status))) {
    return "";
  }
  if (report.tier.kind == TierKind::kFar && report.size_bytes < 0) {
    return "daxctl list  # then: sudo daxctl reconfigure-device "
           "--mode=system-ram --no-movable DEVICE";
  }
  return AnotherNode(report.tier, machine);
}

std::string MendPersistent(const TierReport& report) {
  const std::string place = ShellWord(report.tier.place);
  const bool is_device = absl::StartsWith(report.tier.place, "/dev/");
  if (absl::IsUnimplemented(report.status)) {
    return "sudo apt-get install libpmem2-dev  # then build again";
  }
  if (absl::IsNotFound(report.status)) {
    return is_device ? "ndctl list --namespaces"
                     : "sudo install -d -o \"$USER\" " + place;
  }
  if (absl::IsPermissionDenied(report.status)) {
    return is_device ? "sudo chown \"$USER\" " + place
                     : absl::StrCat("sudo install -d -o \"$USER\" ", place,
                                    "/terrace  # and name that");
  }
  if (absl::IsResourceExhausted(report.status)) {
    return absl::StrCat("df -h ", place, "  # then make room");
  }
  const std::vector<std::string> words =
      absl::StrSplit(report.status.message(), ' ');
  for (const std::string& word : words) {
    if (absl::StartsWith(word, "PMEM2_FORCE_")) return "unset " + word;
  }
  return kListPmem;
}

Finding CannotBeHad(const TierReport& report, const MachineReport& machine) {
  const std::string name = TierName(report.tier);
  // The subject says which place it is.
  absl::string_view what = report.status.message();
  absl::ConsumePrefix(&what, absl::StrCat(report.tier.place, ": "));
  Finding finding{report.named ? Severity::kMissing : Severity::kNote, name,
                  absl::StrCat("cannot be had: ", what), ""};
  if (report.tier.kind == TierKind::kPmem) {
    finding.command = MendPersistent(report);
  } else if (IsMemory(report.tier) && report.named) {
    finding.command = MendMemory(report, machine);
  }
  return finding;
}

void DiagnoseBudget(const TierReport& report, std::vector<Finding>* findings) {
  TierSpec less = report.tier;
  const int64_t asked = less.budget_bytes;
  const bool is_more = report.size_bytes >= 0 && asked > report.size_bytes;
  const bool is_busy = report.free_bytes >= 0 && asked > report.free_bytes;
  if (!is_more && !is_busy) return;
  less.budget_bytes =
      RoundDown(is_busy ? report.free_bytes : report.size_bytes, kMiB);
  findings->push_back(
      {Severity::kMissing, TierName(less),
       absl::StrCat(
           "a budget of ", FormatBytes(asked), "; it has ",
           FormatBytes(report.size_bytes),
           report.free_bytes < 0
               ? ""
               : absl::StrCat(", of which ", FormatBytes(report.free_bytes),
                              " are free")),
       less.budget_bytes > 0 ? Ask(less) : ""});
}

void DiagnoseNode(const TierReport& report, std::vector<Finding>* findings) {
  const std::string name = TierName(report.tier);
  if (report.movable) {
    const bool is_known = !report.dax_device.empty();
    const std::string device = is_known ? report.dax_device : "DEVICE";
    findings->push_back(
        {Severity::kSlower, name,
         "the kernel has it as movable memory: what a device or a ring pins "
         "for long leaves it for another node",
         absl::StrCat(is_known ? "" : "daxctl list  # then: ",
                      "sudo daxctl offline-memory ", device,
                      " && sudo daxctl online-memory --no-movable ", device)});
    return;
  }
  // A limit of locked memory is no property of the node.
  const bool is_limit = absl::StartsWith(report.pin_error, "ENOMEM");
  if (report.can_pin == 0 && !is_limit) {
    findings->push_back({Severity::kSlower, name,
                         absl::StrCat("cannot be pinned (", report.pin_error,
                                      "): buffers there are not registered"),
                         ""});
  }
}

void DiagnosePersistent(const TierReport& report,
                        std::vector<Finding>* findings) {
  const std::string name = TierName(report.tier);
  if (report.granularity == "PAGE") {
    const bool is_pmem = absl::StartsWith(report.source, "/dev/pmem");
    const std::string point = ShellWord(report.mount_point);
    findings->push_back(
        {Severity::kMissing, name,
         absl::StrCat("no persistent memory: ", report.file_system,
                      " persists by page only, granularity PAGE (",
                      report.granularity_cause, ")"),
         is_pmem ? absl::StrCat("sudo umount ", point,
                                " && sudo mount -o dax=always ",
                                ShellWord(report.source), " ", point)
                 : kListPmem});
  }
  if (report.bad_bytes > 0) {
    findings->push_back({Severity::kSlower, name,
                         absl::StrCat(FormatBytes(report.bad_bytes), " of ",
                                      FormatBytes(report.size_bytes),
                                      " are bad blocks, which are never used"),
                         "ndctl list --media-errors"});
  }
  if (report.unsafe_shutdowns > 0) {
    findings->push_back(
        {Severity::kNote, name,
         absl::StrCat("its power was lost ", report.unsafe_shutdowns,
                      " times before its stores were safe; what jobs leave "
                      "there is never used again"),
         "ndctl list --dimms --health"});
  }
}

}  // namespace

void DiagnoseTier(const TierReport& tier, const MachineReport& report,
                  std::vector<Finding>* findings) {
  const bool is_disk = tier.tier.kind == TierKind::kDisk;
  if (!tier.status.ok()) {
    // Of a disk it is said of its path.
    if (!is_disk) findings->push_back(CannotBeHad(tier, report));
    return;
  }
  DiagnoseBudget(tier, findings);
  if (IsMemory(tier.tier)) DiagnoseNode(tier, findings);
  if (tier.tier.kind == TierKind::kPmem) DiagnosePersistent(tier, findings);
}

}  // namespace terrace
