#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/table.h"

namespace terrace::cli {
namespace {

std::string OrUnknown(const std::string& text) {
  return text.empty() ? "unknown" : text;
}

std::string Count(int64_t count, const std::string& noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

// "0-3,8".
std::string FormatCpus(std::vector<int> cpus) {
  std::sort(cpus.begin(), cpus.end());
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", cpus[i]);
    if (last > i) absl::StrAppend(&text, "-", cpus[last]);
    i = last + 1;
  }
  return text.empty() ? "none" : text;
}

void AddProcessor(const ProcessorReport& processor, Table* table) {
  table->Add("processor",
             Join({OrUnknown(processor.model),
                   processor.cpus == 0
                       ? processor.topology_error
                       : absl::StrCat(Count(processor.cpus, "processor"),
                                      " on ", Count(processor.cores, "core"))},
                  ", "));
  table->Add("", absl::StrCat("kernels use ", processor.instruction_set, " of ",
                              Join(processor.instruction_sets, ", ")));
  for (const NumaNodeReport& node : processor.nodes) {
    table->Add(absl::StrCat("node ", node.index),
               absl::StrCat(FormatBytes(node.memory_bytes), ", processors ",
                            FormatCpus(node.cpus)));
  }
}

void AddMemory(const MemoryReport& memory, Table* table) {
  table->Add(
      "memory",
      absl::StrCat(FormatBytes(memory.available_bytes), " available of ",
                   FormatBytes(memory.total_bytes),
                   memory.swap_bytes > 0
                       ? absl::StrCat(", and ", FormatBytes(memory.swap_bytes),
                                      " of swap")
                       : ", no swap"));
  table->Add(
      "huge pages",
      absl::StrCat("transparent ", OrUnknown(memory.transparent),
                   ", defragmentation ", OrUnknown(memory.transparent_defrag),
                   ", shared ", OrUnknown(memory.transparent_shared)));
  if (memory.huge_page_share >= 0) {
    table->Add("", absl::StrFormat("%.0f %% of what was asked for",
                                   100 * memory.huge_page_share));
  }
  for (const HugePagePoolReport& pool : memory.pools) {
    if (pool.total <= 0) continue;
    table->Add("", absl::StrCat("pool of ", FormatBytes(pool.page_bytes),
                                " pages: ", pool.free, " of ", pool.total,
                                " free, ", pool.reserved, " promised"));
  }
  table->Add(
      "locked memory",
      memory.locked_limit_exempt
          ? "this process is exempt from the limit"
          : absl::StrCat("limit ", FormatBytes(memory.locked_limit_bytes),
                         ", may be raised to ",
                         FormatBytes(memory.locked_hard_limit_bytes)));
}

void AddUring(const MachineReport& report, Table* table) {
  const UringReport& uring = report.uring;
  if (!uring.available) {
    table->Add("io_uring", "no: " + uring.error);
  } else {
    table->Add("io_uring", "flags " + Join(uring.setup_flags, " "));
    table->Add("", "features " + Join(uring.features, " "));
    table->Add(
        "",
        absl::StrCat(
            uring.registers_files ? "files registered, "
                                  : "files not registered, ",
            uring.registered_bytes == uring.registered_bytes_tried ? "at least "
                                                                   : "",
            FormatBytes(uring.registered_bytes), " of buffers registered",
            uring.register_error.empty() ? ""
                                         : ", then " + uring.register_error));
  }
  if (uring.disabled_setting >= 0) {
    table->Add("", absl::StrCat("sysctl kernel.io_uring_disabled is ",
                                uring.disabled_setting));
  }
  table->Add("engine", Join({report.engine, report.engine_reason}, ": "));
}

void AddLimits(const ContainerReport& container, Table* table) {
  table->Add("container",
             container.runtime.empty() ? "none is seen" : container.runtime);
  table->Add(
      "limits",
      Join({container.memory_limit_bytes == kNoLimit
                ? "memory: no limit"
                : absl::StrCat(
                      "memory: ", FormatBytes(container.memory_used_bytes),
                      " of ", FormatBytes(container.memory_limit_bytes)),
            container.cpu_limit > 0
                ? absl::StrFormat("processors: %.3g", container.cpu_limit)
                : "processors: no limit",
            container.task_limit == kNoLimit
                ? ""
                : absl::StrCat("tasks: ", container.task_limit),
            absl::StrCat("open files: ", container.open_files_limit),
            absl::StrCat("file size: ",
                         FormatBytes(container.file_size_limit_bytes)),
            container.seccomp ? "a seccomp filter" : ""},
           ", "));
}

void AddGpu(const GpuReport& gpu, Table* table) {
  if (gpu.driver_version.empty()) {
    table->Add("gpu", gpu.cuda_error);
    return;
  }
  table->Add("gpu",
             Join({"driver " + gpu.driver_version,
                   gpu.has_cuda
                       ? absl::StrFormat("CUDA %d.%d", gpu.cuda_version / 1000,
                                         gpu.cuda_version % 1000 / 10)
                       : gpu.cuda_error},
                  ", "));
  for (const GpuDeviceReport& device : gpu.devices) {
    table->Add(
        "",
        Join(
            {device.name, device.bus,
             device.memory_bytes < 0 ? "" : FormatBytes(device.memory_bytes),
             device.compute_major < 0
                 ? ""
                 : absl::StrFormat("compute capability %d.%d",
                                   device.compute_major, device.compute_minor)},
            ", "));
  }
}

void AddDrive(const DriveReport& drive, Table* table) {
  table->Add(
      "  drive " + drive.name,
      Join({drive.model, FormatBytes(drive.size_bytes), drive.transport,
            drive.rotational == 1 ? "says that it rotates" : "",
            drive.serial.empty() ? "" : "serial " + drive.serial,
            drive.numa_node < 0 ? "" : absl::StrCat("node ", drive.numa_node)},
           ", "));
  table->Add("",
             absl::StrCat("requests of ", FormatBytes(drive.max_sectors_bytes),
                          " (at most ", FormatBytes(drive.max_hw_sectors_bytes),
                          " in ", drive.max_segments, " segments), ",
                          drive.queue_requests, " at once, scheduler ",
                          OrUnknown(drive.scheduler), ", cache ",
                          OrUnknown(drive.write_cache), ", blocks of ",
                          drive.logical_block_bytes, " / ",
                          drive.physical_block_bytes, " bytes"));
}

void AddPath(const PathReport& path, Table* table) {
  table->AddWhole("path", path.path);
  if (!path.status.ok()) {
    table->Add("  state", std::string(path.status.message()));
  }
  if (path.kind.empty()) return;
  if (!path.file_system.empty()) {
    table->Add("  file system",
               absl::StrCat(path.kind, ", ", path.file_system, " of ",
                            path.source, " at ", path.mount_point, ", ",
                            FormatBytes(path.free_bytes), " free of ",
                            FormatBytes(path.total_bytes)));
  }
  table->Add(
      "  direct I/O",
      path.direct_io
          ? absl::StrCat(
                "memory aligned to ", path.memory_alignment, ", offsets to ",
                path.offset_alignment, " bytes",
                path.told_offset_alignment > 0
                    ? absl::StrCat(" (statx: ", path.told_memory_alignment,
                                   ", ", path.told_offset_alignment, ")")
                    : " (statx does not say)")
          : Join({"no", path.direct_io_error}, ": "));
  table->Add("  devices", Join(path.stack, " > "));
  for (const DriveReport& drive : path.drives) AddDrive(drive, table);
}

// "node2 asked, node2 got, memory only, movable (dax0.0)".
std::string NodeOfTier(const TierReport& report) {
  const int asked = NodeOf(report.tier);
  return Join(
      {asked < 0 ? "no node asked" : absl::StrCat("node", asked, " asked"),
       report.found_node < 0 ? "several or an unknown one got"
                             : absl::StrCat("node", report.found_node, " got"),
       report.memory_only ? "memory only" : "", report.movable ? "movable" : "",
       report.dax_device},
      ", ");
}

void AddPages(const TierReport& report, Table* table) {
  if (report.page_bytes < 0) return;
  table->Add("  node", NodeOfTier(report));
  table->Add("  pages", absl::StrFormat("%s, %.0f %% of a probe in huge pages",
                                        FormatBytes(report.page_bytes),
                                        100 * report.huge_page_share));
}

// Of a disk nothing is pinned.
void AddPins(const TierReport& report, Table* table) {
  if (report.can_pin < 0 && report.pin_error.empty()) return;
  table->Add("  can pin", Join({report.can_pin < 0    ? "unknown"
                                : report.can_pin == 0 ? "no"
                                                      : "yes",
                                report.pin_error},
                               ": "));
}

void AddTier(const TierReport& report, Table* table) {
  table->AddWhole("tier", TierText(report.tier));
  if (!report.status.ok()) {
    table->Add("  state", std::string(report.status.message()));
  }
  if (report.size_bytes >= 0) {
    table->Add("  size",
               absl::StrCat(FormatBytes(report.free_bytes), " free of ",
                            FormatBytes(report.size_bytes)));
  }
  AddPages(report, table);
  AddPins(report, table);
  if (!report.file_system.empty()) {
    table->Add(
        "  file system",
        Join({report.file_system, report.source, report.mount_point}, ", "));
  }
  if (report.granularity.empty()) return;
  table->Add("  granularity",
             Join({report.granularity, report.granularity_cause}, ": "));
  table->Add("  bad blocks", FormatBytes(report.bad_bytes));
  if (report.unsafe_shutdowns >= 0) {
    table->Add("  unsafe shutdowns", absl::StrCat(report.unsafe_shutdowns));
  }
}

std::string Verdict(const MachineReport& report) {
  int64_t missing = 0;
  int64_t slower = 0;
  for (const Finding& finding : report.findings) {
    missing += finding.severity == Severity::kMissing;
    slower += finding.severity == Severity::kSlower;
  }
  std::string verdict = "verdict: ";
  absl::StrAppend(&verdict,
                  missing > 0
                      ? absl::StrCat("not usable, ", missing,
                                     missing == 1 ? " necessary thing missing"
                                                  : " necessary things missing")
                      : "usable");
  absl::StrAppend(&verdict, slower > 0
                                ? absl::StrCat(", ", Count(slower, "thing"),
                                               slower == 1 ? " costs" : " cost",
                                               " speed or safety")
                                : ", nothing costs speed");
  return verdict + "\n";
}

}  // namespace

std::string FormatReport(const MachineReport& report, int width) {
  Table facts;
  facts.Add("kernel", Join({report.kernel, report.architecture}, " "));
  AddProcessor(report.processor, &facts);
  AddMemory(report.memory, &facts);
  AddUring(report, &facts);
  AddLimits(report.container, &facts);
  AddGpu(report.gpu, &facts);
  for (const PathReport& path : report.paths) AddPath(path, &facts);
  for (const TierReport& tier : report.tiers) AddTier(tier, &facts);
  Table findings;
  for (const Finding& finding : report.findings) {
    findings.Add(SeverityName(finding.severity),
                 absl::StrCat(finding.subject, ": ", finding.what));
    findings.AddWhole("  mend", finding.command);
  }
  return absl::StrCat(facts.Format(width), "\n", findings.Format(width), "\n",
                      Verdict(report));
}

}  // namespace terrace::cli
