#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "machine/storage.h"

namespace terrace {
namespace {

// Blanks and backslashes of a name are written as "\040".
std::string Unescape(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return text[i + at] - '0'; };
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::all_of(text.begin() + static_cast<ptrdiff_t>(i) + 1,
                    text.begin() + static_cast<ptrdiff_t>(i) + 4,
                    [](char c) { return c >= '0' && c <= '7'; })) {
      plain += static_cast<char>(digit(1) * 64 + digit(2) * 8 + digit(3));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// "27 1 254:0 / /mnt rw,relatime shared:1 - ext4 /dev/vda rw,discard": any
// number of fields stand before the dash.
bool ParseMount(const std::string& line, Mount* mount) {
  const std::vector<std::string> halves =
      absl::StrSplit(line, absl::MaxSplits(" - ", 1));
  if (halves.size() != 2) return false;
  const std::vector<std::string> left = absl::StrSplit(halves[0], ' ');
  const std::vector<std::string> right = absl::StrSplit(halves[1], ' ');
  if (left.size() < 6 || right.size() < 3) return false;
  const std::vector<std::string> device = absl::StrSplit(left[2], ':');
  if (!absl::SimpleAtoi(left[0], &mount->id) || device.size() != 2 ||
      !absl::SimpleAtoi(device[0], &mount->major) ||
      !absl::SimpleAtoi(device[1], &mount->minor)) {
    return false;
  }
  mount->point = Unescape(left[4]);
  mount->options = absl::StrCat(left[5], ",", right[2]);
  mount->file_system = right[0];
  mount->source = Unescape(right[1]);
  return true;
}

bool Holds(const std::string& point, const std::string& path) {
  if (point == "/" || point == path) return true;
  return absl::StartsWith(path, absl::StrCat(point, "/"));
}

}  // namespace

std::vector<Mount> ReadMounts(const PseudoFiles& files) {
  std::vector<Mount> mounts;
  for (const std::string& line : files.Lines("/proc/self/mountinfo")) {
    Mount mount;
    if (ParseMount(line, &mount)) mounts.push_back(std::move(mount));
  }
  return mounts;
}

const Mount* FindMount(const std::vector<Mount>& mounts, int64_t id,
                       const std::string& path) {
  const Mount* best = nullptr;
  for (const Mount& mount : mounts) {
    if (id >= 0 && mount.id == id) return &mount;
    // Of equal points the later one lies over the earlier.
    if (Holds(mount.point, path) &&
        (best == nullptr || mount.point.size() >= best->point.size())) {
      best = &mount;
    }
  }
  return best;
}

FileSystemKind KindOf(const std::string& file_system) {
  static constexpr std::array kMemory = {"tmpfs", "ramfs", "devtmpfs"};
  static constexpr std::array kLayered = {"overlay", "aufs"};
  static constexpr std::array kNetwork = {
      "nfs",      "nfs4",      "cifs",   "smb3", "ceph",
      "lustre",   "gpfs",      "beegfs", "afs",  "9p",
      "virtiofs", "glusterfs", "ocfs2",  "gfs2", "orangefs"};
  const auto is_one_of = [&](const auto& names) {
    return std::find(names.begin(), names.end(), file_system) != names.end();
  };
  if (is_one_of(kMemory)) return FileSystemKind::kMemory;
  if (is_one_of(kLayered)) return FileSystemKind::kLayered;
  if (is_one_of(kNetwork)) return FileSystemKind::kNetwork;
  if (absl::StartsWith(file_system, "fuse")) return FileSystemKind::kUserSpace;
  return FileSystemKind::kDisk;
}

}  // namespace terrace
