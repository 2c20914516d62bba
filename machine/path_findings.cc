#include <algorithm>
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

constexpr int64_t kLittleSpace = int64_t{1} << 30;
// A piece of I/O is cut into requests of this many bytes at most without much
// cost; below it, each piece is many requests.
constexpr int64_t kGoodRequest = 1 << 20;

bool HasOption(const PathReport& path, const std::string& option) {
  for (const absl::string_view word : absl::StrSplit(path.mount_options, ',')) {
    if (word == option) return true;
  }
  return false;
}

// The path is given as an option's argument, where a leading dash would be
// taken for another option.
std::string Quoted(const PathReport& path) {
  return ShellWord(absl::StartsWith(path.path, "-") ? "./" + path.path
                                                    : path.path);
}

Finding Unusable(const PathReport& path) {
  // The subject says which path it is.
  absl::string_view what = path.status.message();
  absl::ConsumePrefix(&what, absl::StrCat("path '", path.path, "': "));
  Finding finding{Severity::kMissing, path.path, std::string(what), ""};
  const std::string make = "sudo install -d -o \"$USER\" ";
  if (absl::IsNotFound(path.status)) {
    finding.command = make + Quoted(path);
  } else if (absl::IsPermissionDenied(path.status)) {
    // Whose directory it is, it may stay.
    finding.command =
        HasOption(path, "ro")
            ? "sudo mount -o remount,rw " + ShellWord(path.mount_point)
            : absl::StrCat(make, Quoted(path), "/terrace  # and name that");
  } else if (absl::IsResourceExhausted(path.status)) {
    finding.command = "df -h " + Quoted(path) + "  # then make room";
  }
  return finding;
}

void DiagnoseFileSystem(const PathReport& path,
                        std::vector<Finding>* findings) {
  const auto add = [&](const std::string& what, const std::string& command) {
    findings->push_back({Severity::kSlower, path.path, what, command});
  };
  switch (path.file_system_kind) {
    case FileSystemKind::kMemory:
      add(path.file_system +
              " is host memory: state here is neither below memory nor "
              "durable. Name a directory on a drive",
          "");
      break;
    case FileSystemKind::kLayered:
      add(path.file_system +
              " is a container's own layer: slow, and gone with it. Mount a "
              "volume",
          "docker run -v DIRECTORY:" + Quoted(path) + " ...");
      break;
    case FileSystemKind::kNetwork:
      add(path.file_system +
              " goes over a network, or to a host: a drive of "
              "this machine is faster",
          "");
      break;
    case FileSystemKind::kUserSpace:
      add(path.file_system +
              " is served by a process: each request costs its time too, and "
              "one that it answers short may go wrong in the kernel, so that "
              "threads are taken in place of io_uring unless that is named. "
              "Name a directory on a drive",
          "");
      break;
    case FileSystemKind::kDisk:
      break;
  }
  if (path.file_system == "btrfs" && !HasOption(path, "nodatacow")) {
    add("btrfs writes to a new place each time and sums in the processor; "
        "files made after this do neither",
        "sudo chattr +C " + Quoted(path));
  }
  if (HasOption(path, "nobarrier") || HasOption(path, "barrier=0")) {
    add("mounted without barriers: a power cut can lose committed steps",
        "sudo mount -o remount,barrier=1 " + ShellWord(path.mount_point));
  }
}

void DiagnoseDrive(const DriveReport& drive, std::vector<Finding>* findings) {
  const auto add = [&](Severity severity, const std::string& what,
                       const std::string& command) {
    findings->push_back({severity, drive.name, what, command});
  };
  const std::string queue = absl::StrCat("/sys/block/", drive.name, "/queue/");
  // Virtual drives say that they rotate because nothing says otherwise.
  const bool is_virtual =
      drive.transport == "virtio" || drive.transport == "virtual";
  if (drive.rotational == 1 && !is_virtual) {
    add(Severity::kSlower,
        "it rotates: a hundredth of the speed of an NVMe drive", "");
  }
  const bool is_flash = absl::StartsWith(drive.name, "nvme");
  if (is_flash && !drive.scheduler.empty() && drive.scheduler != "none") {
    add(Severity::kSlower,
        absl::StrCat(
            "scheduler ", drive.scheduler,
            " takes a lock for each request; Terrace orders by itself"),
        absl::StrCat("echo none | sudo tee ", queue, "scheduler"));
  }
  const int64_t best = std::min(drive.max_hw_sectors_bytes, kGoodRequest);
  if (drive.max_sectors_bytes > 0 && drive.max_sectors_bytes < best) {
    add(Severity::kSlower,
        absl::StrCat("requests are cut to ",
                     FormatBytes(drive.max_sectors_bytes), "; the drive takes ",
                     FormatBytes(drive.max_hw_sectors_bytes)),
        absl::StrCat("echo ", best / 1024, " | sudo tee ", queue,
                     "max_sectors_kb"));
  }
  if (drive.link_width > 0 && drive.link_width < drive.link_width_max) {
    add(Severity::kSlower,
        absl::StrCat("connected by ", drive.link_width, " of its ",
                     drive.link_width_max, " PCIe lanes"),
        "");
  }
}

}  // namespace

void DiagnosePath(const PathReport& path, std::vector<Finding>* findings) {
  if (!path.status.ok()) {
    findings->push_back(Unusable(path));
    return;
  }
  DiagnoseFileSystem(path, findings);
  const auto add = [&](const std::string& what) {
    findings->push_back({Severity::kSlower, path.path, what, ""});
  };
  if (!path.direct_io) {
    add(absl::StrCat("no direct I/O (", path.direct_io_error,
                     "): data are copied through the page cache, two thirds of "
                     "the speed, and dropped from it"));
  } else if (path.told_offset_alignment > kBlockBytes) {
    add(absl::StrCat("direct I/O asks for offsets in multiples of ",
                     FormatBytes(path.told_offset_alignment),
                     ": requests of 4 KiB are refused or buffered"));
  } else if (path.offset_alignment < 0 && path.kind != "file") {
    // Of a file it may be that it is too short to read.
    add("direct I/O refuses requests of 4 KiB");
  }
  if (path.free_bytes >= 0 && path.free_bytes < kLittleSpace) {
    add(absl::StrCat("only ", FormatBytes(path.free_bytes), " are free"));
  }
  if (!path.stack.empty() && absl::StartsWith(path.stack[0], "loop")) {
    add("a loop device: a file on another file system is read and written "
        "for it");
  }
  for (const DriveReport& drive : path.drives) DiagnoseDrive(drive, findings);
}

}  // namespace terrace
