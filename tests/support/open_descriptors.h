// What this process has open, as its kernel lists it.
#pragma once

#include <dirent.h>

#include <filesystem>
#include <set>
#include <string>
#include <system_error>

namespace terrace {

// "<number> <what it is>" of each, such as "7 anon_inode:[io_uring]". Without
// the one that reads the list.
inline std::set<std::string> OpenDescriptors() {
  std::set<std::string> all;
  DIR* const list = opendir("/proc/self/fd");
  if (list == nullptr) return all;
  while (const dirent* const entry = readdir(list)) {
    const std::string number = entry->d_name;
    if (number[0] == '.' || number == std::to_string(dirfd(list))) continue;
    std::error_code error;
    const auto what =
        std::filesystem::read_symlink("/proc/self/fd/" + number, error);
    all.insert(number + " " + what.string());
  }
  closedir(list);
  return all;
}

// How many are this, a file's path or a kind.
inline int CountOpen(const std::filesystem::path& what) {
  int count = 0;
  for (const std::string& each : OpenDescriptors()) {
    count += each.substr(each.find(' ') + 1) == what ? 1 : 0;
  }
  return count;
}

}  // namespace terrace
