// What lies behind a path: the mount that it is on, and the block devices
// from there down to the drives. Thread-safe; what cannot be found is left
// unknown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine/pseudo_files.h"
#include "terrace/machine.h"

namespace terrace {

struct Mount {
  int64_t id = -1;
  unsigned major = 0;  // of its files' st_dev
  unsigned minor = 0;
  std::string point;
  std::string file_system;
  std::string source;
  std::string options;  // of the mount and of the file system
};

std::vector<Mount> ReadMounts(const PseudoFiles& files);

// The mount with this number, else the last one whose point holds `path`,
// absolute and without links; null: none.
const Mount* FindMount(const std::vector<Mount>& mounts, int64_t id,
                       const std::string& path);

FileSystemKind KindOf(const std::string& file_system);

// Fills in report->stack and report->drives from a device number; where it is
// none of a block device (btrfs, overlay), from the mount's source, "/dev/...".
void FindDrives(const PseudoFiles& files, unsigned major, unsigned minor,
                const std::string& source, PathReport* report);

// The mount and the drives behind `path`; nothing below it is opened.
PathReport IdentifyPath(const PseudoFiles& files, const std::string& path);

// Everything that a PathReport says of `path`, with a probe file below it.
PathReport ProbePath(const PseudoFiles& files, const std::string& path);

}  // namespace terrace
