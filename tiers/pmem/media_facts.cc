#include "tiers/pmem/media_facts.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/directory_names.h"
#include "base/process.h"

namespace terrace {
namespace {

constexpr char kForced[] = "PMEM2_FORCE_";
constexpr char kRegions[] = "/sys/bus/nd/devices";

// The variable's name; empty: it is another one.
std::string ForcedName(absl::string_view entry) {
  if (!absl::StartsWith(entry, kForced)) return "";
  return std::string(entry.substr(0, entry.find('=')));
}

std::string FirstForced() {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string name = ForcedName(*entry);
    if (!name.empty()) return name;
  }
  // The library read it when it was loaded; it may be unset since.
  std::ifstream file("/proc/self/environ", std::ios::binary);
  for (std::string entry; std::getline(file, entry, '\0');) {
    const std::string name = ForcedName(entry);
    if (!name.empty()) return name;
  }
  return "";
}

}  // namespace

absl::Status CheckPmemEnvironment() {
  const std::string name = FirstForced();
  if (name.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "persistent memory: ", name,
      " is in the environment: libpmem2 believes it, and what is written may "
      "never be flushed; start without it"));
}

std::string FileSystemOf(int fd) {
  struct stat node = {};
  if (fstat(fd, &node) == 0 && S_ISCHR(node.st_mode)) return "devdax";
  struct statx status = {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &status) == 0 &&
      (status.stx_mask & STATX_MNT_ID) != 0) {
    // "<mount> <parent> <device> <root> <point> <options> [...] - <type> ..."
    const std::string mount = absl::StrCat(status.stx_mnt_id, " ");
    std::ifstream file("/proc/self/mountinfo");
    for (std::string line; std::getline(file, line);) {
      const size_t dash = line.find(" - ");
      if (!absl::StartsWith(line, mount) || dash == std::string::npos) continue;
      const size_t type = dash + 3;
      return line.substr(type, line.find(' ', type) - type);
    }
  }
  return "an unknown file system";
}

int TryMapSync(int fd, int64_t size_bytes) {
  const auto size = static_cast<size_t>(size_bytes);
  // A child that had the mapping would keep the open file, and its lock.
  const ForkPause pause;
  void* const mapping = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                             MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
  if (mapping == MAP_FAILED) return errno;
  munmap(mapping, size);
  return 0;
}

std::string PersistenceDomains() {
  std::set<std::string> domains;
  const int folder = open(kRegions, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    for (const std::string& name : NamesIn(folder)) {
      std::ifstream file(
          absl::StrCat(kRegions, "/", name, "/persistence_domain"));
      std::string domain;
      if (std::getline(file, domain) && !domain.empty()) domains.insert(domain);
    }
    close(folder);
  }
  return domains.empty() ? "unknown" : absl::StrJoin(domains, ", ");
}

}  // namespace terrace
