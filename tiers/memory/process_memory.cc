#include "tiers/memory/process_memory.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace terrace {
namespace {

// The number behind `key` in lines of "key number ...", else -1.
int64_t FindNumber(const std::string& file, const std::string& key) {
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string word;
    int64_t number = 0;
    if (words >> word >> number && word == key) return number;
  }
  return -1;
}

// The number that is all of `file`, else -1 ("max", or no such file).
int64_t ReadNumber(const std::string& file) {
  std::ifstream in(file);
  std::string word;
  int64_t number = 0;
  if (!(in >> word) || !absl::SimpleAtoi(word, &number)) return -1;
  return number;
}

// What one group leaves: its limit less its use, of which the kernel takes
// back cached file pages before it fails.
int64_t RoomIn(const std::string& group, const char* limit_name,
               const char* use_name, const char* cache_name) {
  const int64_t limit = ReadNumber(absl::StrCat(group, "/", limit_name));
  const int64_t used = ReadNumber(absl::StrCat(group, "/", use_name));
  if (limit < 0 || used < 0) return INT64_MAX;
  const int64_t cached =
      FindNumber(absl::StrCat(group, "/memory.stat"), cache_name);
  const int64_t kept =
      std::max<int64_t>(0, used - std::max<int64_t>(0, cached));
  return std::max<int64_t>(0, limit - kept);
}

// Every group up to the root limits its members.
int64_t RoomOnTheWayUp(const std::string& root, std::string group,
                       const char* limit_name, const char* use_name,
                       const char* cache_name) {
  int64_t room = INT64_MAX;
  while (true) {
    room = std::min(room, RoomIn(absl::StrCat(root, group), limit_name,
                                 use_name, cache_name));
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return room;
    group.resize(slash);
  }
}

}  // namespace

int64_t HugeBytes(absl::Span<const std::byte> area) {
  const auto begin = reinterpret_cast<uintptr_t>(area.data());
  const uintptr_t end = begin + area.size();
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  int64_t kilobytes = 0;
  while (std::getline(smaps, line)) {
    uintptr_t first = 0;
    uintptr_t last = 0;
    int64_t huge = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) {
      inside = first >= begin && last <= end;
    } else if (inside &&
               std::sscanf(line.c_str(), "AnonHugePages: %ld kB", &huge) == 1) {
      kilobytes += huge;
    }
  }
  return kilobytes * 1024;
}

int64_t AvailableMemoryBytesUnder(const std::string& proc,
                                  const std::string& cgroup) {
  int64_t available = INT64_MAX;
  const int64_t kilobytes =
      FindNumber(absl::StrCat(proc, "/meminfo"), "MemAvailable:");
  if (kilobytes >= 0) available = kilobytes * 1024;
  std::ifstream groups(absl::StrCat(proc, "/self/cgroup"));
  std::string line;
  while (std::getline(groups, line)) {
    // "0::/path" (version 2) or "4:memory:/path" (version 1).
    const size_t first = line.find(':');
    const size_t second =
        first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers.empty()) {
      available = std::min(available,
                           RoomOnTheWayUp(cgroup, path, "memory.max",
                                          "memory.current", "inactive_file"));
    } else if (absl::StrContains(absl::StrCat(",", controllers, ","),
                                 ",memory,")) {
      available =
          std::min(available, RoomOnTheWayUp(absl::StrCat(cgroup, "/memory"),
                                             path, "memory.limit_in_bytes",
                                             "memory.usage_in_bytes",
                                             "total_inactive_file"));
    }
  }
  return available;
}

}  // namespace terrace
