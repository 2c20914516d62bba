// Unknown numbers and limits that are not there are null; docs/machine.md has
// a line for each key.
#include <nlohmann/json.hpp>
#include <string>

#include "terrace/machine.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

Json Known(int64_t number) {
  return number < 0 || number == kNoLimit ? Json() : Json(number);
}

Json Known(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json ToObject(const ProcessorReport& processor) {
  Json nodes = Json::array();
  for (const NumaNodeReport& node : processor.nodes) {
    nodes.push_back({{"index", node.index},
                     {"memory_bytes", Known(node.memory_bytes)},
                     {"cpus", node.cpus}});
  }
  return {{"model", Known(processor.model)},
          {"cpus", processor.cpus},
          {"cores", processor.cores},
          {"numa_nodes", nodes},
          {"topology_error", Known(processor.topology_error)},
          {"instruction_sets", processor.instruction_sets},
          {"instruction_set", processor.instruction_set}};
}

Json ToObject(const MemoryReport& memory) {
  Json pools = Json::array();
  for (const HugePagePoolReport& pool : memory.pools) {
    pools.push_back({{"page_bytes", pool.page_bytes},
                     {"total", Known(pool.total)},
                     {"free", Known(pool.free)},
                     {"reserved", Known(pool.reserved)}});
  }
  return {{"total_bytes", Known(memory.total_bytes)},
          {"available_bytes", Known(memory.available_bytes)},
          {"swap_bytes", Known(memory.swap_bytes)},
          {"transparent_huge_pages", Known(memory.transparent)},
          {"transparent_defrag", Known(memory.transparent_defrag)},
          {"transparent_shared", Known(memory.transparent_shared)},
          {"huge_page_bytes", Known(memory.huge_page_bytes)},
          {"huge_page_share",
           memory.huge_page_share < 0 ? Json() : Json(memory.huge_page_share)},
          {"huge_page_pools", pools},
          {"locked_limit_bytes", Known(memory.locked_limit_bytes)},
          {"locked_hard_limit_bytes", Known(memory.locked_hard_limit_bytes)},
          {"locked_limit_exempt", memory.locked_limit_exempt}};
}

Json ToObject(const UringReport& uring) {
  return {{"available", uring.available},
          {"error", Known(uring.error)},
          {"disabled_setting", Known(uring.disabled_setting)},
          {"setup_flags", uring.setup_flags},
          {"features", uring.features},
          {"missing_operations", uring.missing_operations},
          {"registers_files", uring.registers_files},
          {"registered_bytes", uring.registered_bytes},
          {"registered_bytes_tried", uring.registered_bytes_tried},
          {"register_error", Known(uring.register_error)}};
}

Json ToObject(const ContainerReport& container) {
  return {{"runtime", Known(container.runtime)},
          {"group_version", container.group_version},
          {"memory_limit_bytes", Known(container.memory_limit_bytes)},
          {"memory_used_bytes", Known(container.memory_used_bytes)},
          {"cpu_limit",
           container.cpu_limit > 0 ? Json(container.cpu_limit) : Json()},
          {"task_limit", Known(container.task_limit)},
          {"seccomp", container.seccomp},
          {"open_files_limit", Known(container.open_files_limit)},
          {"file_size_limit_bytes", Known(container.file_size_limit_bytes)}};
}

Json ToObject(const GpuReport& gpu) {
  Json devices = Json::array();
  for (const GpuDeviceReport& device : gpu.devices) {
    devices.push_back({{"name", Known(device.name)},
                       {"uuid", Known(device.uuid)},
                       {"bus", Known(device.bus)},
                       {"memory_bytes", Known(device.memory_bytes)},
                       {"compute_major", Known(device.compute_major)},
                       {"compute_minor", Known(device.compute_minor)}});
  }
  return {{"driver_version", Known(gpu.driver_version)},
          {"has_cuda", gpu.has_cuda},
          {"cuda_error", Known(gpu.cuda_error)},
          {"cuda_version", Known(gpu.cuda_version)},
          {"display_controllers", gpu.display_controllers},
          {"devices", devices}};
}

Json ToObject(const DriveReport& drive) {
  return {{"name", drive.name},
          {"model", Known(drive.model)},
          {"serial", Known(drive.serial)},
          {"transport", Known(drive.transport)},
          {"size_bytes", Known(drive.size_bytes)},
          {"rotational",
           drive.rotational < 0 ? Json() : Json(drive.rotational != 0)},
          {"max_sectors_bytes", Known(drive.max_sectors_bytes)},
          {"max_hw_sectors_bytes", Known(drive.max_hw_sectors_bytes)},
          {"max_segments", Known(drive.max_segments)},
          {"queue_requests", Known(drive.queue_requests)},
          {"scheduler", Known(drive.scheduler)},
          {"write_cache", Known(drive.write_cache)},
          {"logical_block_bytes", Known(drive.logical_block_bytes)},
          {"physical_block_bytes", Known(drive.physical_block_bytes)},
          {"numa_node", Known(drive.numa_node)},
          {"link_width", Known(drive.link_width)},
          {"link_width_max", Known(drive.link_width_max)}};
}

const char* NameOf(FileSystemKind kind) {
  switch (kind) {
    case FileSystemKind::kDisk:
      return "disk";
    case FileSystemKind::kMemory:
      return "memory";
    case FileSystemKind::kLayered:
      return "layered";
    case FileSystemKind::kNetwork:
      return "network";
    case FileSystemKind::kUserSpace:
      return "user space";
  }
  return "";
}

Json ToObject(const PathReport& path) {
  Json drives = Json::array();
  for (const DriveReport& drive : path.drives)
    drives.push_back(ToObject(drive));
  return {{"path", path.path},
          {"error", path.status.ok() ? Json() : Json(path.status.ToString())},
          {"kind", Known(path.kind)},
          {"mount_point", Known(path.mount_point)},
          {"file_system", Known(path.file_system)},
          {"file_system_kind", NameOf(path.file_system_kind)},
          {"source", Known(path.source)},
          {"mount_options", Known(path.mount_options)},
          {"total_bytes", Known(path.total_bytes)},
          {"free_bytes", Known(path.free_bytes)},
          {"direct_io", path.direct_io},
          {"direct_io_error", Known(path.direct_io_error)},
          {"told_memory_alignment", path.told_memory_alignment},
          {"told_offset_alignment", path.told_offset_alignment},
          {"memory_alignment", Known(path.memory_alignment)},
          {"offset_alignment", Known(path.offset_alignment)},
          {"stack", path.stack},
          {"drives", drives}};
}

Json ToObject(const TierReport& tier) {
  const auto node = [](int index) { return index < 0 ? Json() : Json(index); };
  const TierSpec& spec = tier.tier;
  return {{"name", TierName(spec)},
          {"kind", TierKindName(spec.kind)},
          {"named", tier.named},
          {"error", tier.status.ok() ? Json() : Json(tier.status.ToString())},
          {"budget_bytes",
           spec.budget_bytes > 0 ? Json(spec.budget_bytes) : Json()},
          {"size_bytes", Known(tier.size_bytes)},
          {"free_bytes", Known(tier.free_bytes)},
          {"page_bytes", Known(tier.page_bytes)},
          {"huge_page_share",
           tier.huge_page_share < 0 ? Json() : Json(tier.huge_page_share)},
          {"node_asked", node(NodeOf(spec))},
          {"node_found", node(tier.found_node)},
          {"memory_only", tier.memory_only},
          {"movable", tier.movable},
          {"dax_device", Known(tier.dax_device)},
          {"can_pin", tier.can_pin < 0 ? Json() : Json(tier.can_pin != 0)},
          {"pin_error", Known(tier.pin_error)},
          {"file_system", Known(tier.file_system)},
          {"source", Known(tier.source)},
          {"mount_point", Known(tier.mount_point)},
          {"granularity", Known(tier.granularity)},
          {"granularity_cause", Known(tier.granularity_cause)},
          {"bad_bytes", Known(tier.bad_bytes)},
          {"unsafe_shutdowns", Known(tier.unsafe_shutdowns)}};
}

}  // namespace

std::string ToJson(const MachineReport& report) {
  Json paths = Json::array();
  for (const PathReport& path : report.paths) paths.push_back(ToObject(path));
  Json tiers = Json::array();
  for (const TierReport& tier : report.tiers) tiers.push_back(ToObject(tier));
  Json findings = Json::array();
  for (const Finding& finding : report.findings) {
    findings.push_back({{"severity", SeverityName(finding.severity)},
                        {"subject", finding.subject},
                        {"what", finding.what},
                        {"command", Known(finding.command)}});
  }
  const Json json = {{"format", 1},
                     {"usable", report.usable()},
                     {"machine_id", Known(report.machine_id)},
                     {"kernel", Known(report.kernel)},
                     {"architecture", Known(report.architecture)},
                     {"processor", ToObject(report.processor)},
                     {"memory", ToObject(report.memory)},
                     {"io_uring", ToObject(report.uring)},
                     {"engine", Known(report.engine)},
                     {"engine_reason", Known(report.engine_reason)},
                     {"container", ToObject(report.container)},
                     {"gpu", ToObject(report.gpu)},
                     {"paths", paths},
                     {"tiers", tiers},
                     {"findings", findings}};
  // Names of files may be any bytes.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace terrace
