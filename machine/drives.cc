#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "machine/storage.h"

namespace terrace {
namespace {

constexpr int64_t kSector = 512;  // of /sys/block/*/size, whatever the drive's
constexpr int kDeepest = 16;      // of stacked devices

std::string NameOf(const std::string& folder) {
  return folder.substr(folder.rfind('/') + 1);
}

std::string ParentOf(const std::string& folder) {
  return folder.substr(0, folder.rfind('/'));
}

int64_t Scaled(int64_t number, int64_t unit) {
  return number < 0 ? -1 : number * unit;
}

// The first of these files that says something.
std::string FirstText(const PseudoFiles& files, const std::string& folder,
                      const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string text = files.Text(absl::StrCat(folder, "/", name));
    if (!text.empty()) return text;
  }
  return "";
}

// The first of these files that holds a number.
int FirstNumber(const PseudoFiles& files, const std::string& folder,
                const std::vector<std::string>& names) {
  // SimpleAtoi writes 0 where it fails.
  int number = 0;
  return absl::SimpleAtoi(FirstText(files, folder, names), &number) ? number
                                                                    : -1;
}

// By the driver's own word, else by the folders that the drive hangs from.
std::string TransportOf(const PseudoFiles& files, const std::string& folder) {
  const std::string told = files.Text(folder + "/device/transport");
  if (!told.empty()) return told;
  for (const auto& [trace, name] :
       {std::pair("/virtio", "virtio"), std::pair("/usb", "usb"),
        std::pair("/ata", "sata"), std::pair("/nvme", "nvme"),
        std::pair("/host", "scsi"), std::pair("/virtual/", "virtual")}) {
    if (absl::StrContains(folder, trace)) return name;
  }
  return "";
}

DriveReport ReadDrive(const PseudoFiles& files, const std::string& folder) {
  const std::string queue = folder + "/queue";
  DriveReport drive;
  drive.name = NameOf(folder);
  drive.model = FirstText(files, folder, {"device/model", "loop/backing_file"});
  drive.serial = FirstText(files, folder,
                           {"device/serial", "serial", "wwid", "device/wwid"});
  drive.transport = TransportOf(files, folder);
  drive.size_bytes = Scaled(files.Number(folder + "/size"), kSector);
  drive.rotational = FirstNumber(files, queue, {"rotational"});
  drive.max_sectors_bytes =
      Scaled(files.Number(queue + "/max_sectors_kb"), 1024);
  drive.max_hw_sectors_bytes =
      Scaled(files.Number(queue + "/max_hw_sectors_kb"), 1024);
  drive.max_segments = files.Number(queue + "/max_segments");
  drive.queue_requests = files.Number(queue + "/nr_requests");
  drive.scheduler = files.Choice(queue + "/scheduler");
  drive.write_cache = files.Text(queue + "/write_cache");
  drive.logical_block_bytes = files.Number(queue + "/logical_block_size");
  drive.physical_block_bytes = files.Number(queue + "/physical_block_size");
  // An NVMe namespace's device is its controller, whose device is PCI's.
  drive.numa_node = FirstNumber(
      files, folder, {"device/numa_node", "device/device/numa_node"});
  drive.link_width =
      FirstNumber(files, folder, {"device/device/current_link_width"});
  drive.link_width_max =
      FirstNumber(files, folder, {"device/device/max_link_width"});
  return drive;
}

// "dm-0 (crypt)", "md0 (raid0)", "sda2 (partition)", "sda".
std::string Describe(const PseudoFiles& files, const std::string& folder) {
  const std::string name = NameOf(folder);
  if (files.Exists(folder + "/partition")) return name + " (partition)";
  const std::string level = files.Text(folder + "/md/level");
  if (!level.empty()) return absl::StrCat(name, " (", level, ")");
  // "CRYPT-LUKS2-…", "LVM-…": the tool that made it.
  const std::string uuid = files.Text(folder + "/dm/uuid");
  if (files.Exists(folder + "/dm")) {
    const std::string maker = uuid.substr(0, uuid.find('-'));
    return absl::StrCat(name, " (", maker.empty() ? "mapped" : maker, " ",
                        files.Text(folder + "/dm/name"), ")");
  }
  return name;
}

template <typename List, typename Value>
bool Contains(const List& list, const Value& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

void Descend(const PseudoFiles& files, const std::string& folder, int depth,
             PathReport* report) {
  const std::string words = Describe(files, folder);
  if (depth > kDeepest || Contains(report->stack, words)) return;
  report->stack.push_back(words);
  if (files.Exists(folder + "/partition")) {
    Descend(files, ParentOf(folder), depth + 1, report);
    return;
  }
  const std::vector<std::string> below = files.Names(folder + "/slaves");
  for (const std::string& name : below) {
    const std::string next =
        files.Resolve(absl::StrCat(folder, "/slaves/", name));
    if (!next.empty()) Descend(files, next, depth + 1, report);
  }
  if (below.empty()) report->drives.push_back(ReadDrive(files, folder));
}

}  // namespace

void FindDrives(const PseudoFiles& files, unsigned major, unsigned minor,
                const std::string& source, PathReport* report) {
  std::string folder =
      files.Resolve(absl::StrCat("/sys/dev/block/", major, ":", minor));
  if (folder.empty() && absl::StartsWith(source, "/dev/")) {
    // /dev/mapper/data is a link to /dev/dm-0.
    const std::string device = files.Resolve(source);
    folder = files.Resolve(absl::StrCat(
        "/sys/class/block/", NameOf(device.empty() ? source : device)));
  }
  if (!folder.empty()) Descend(files, folder, 0, report);
}

}  // namespace terrace
