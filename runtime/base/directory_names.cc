#include "runtime/base/directory_names.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace terrace {

std::vector<std::string> NamesIn(int directory_fd) {
  // A descriptor of its own: the listing owns it and moves its position.
  const int listing_fd =
      openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* listing = listing_fd < 0 ? nullptr : fdopendir(listing_fd);
  std::vector<std::string> names;
  if (listing == nullptr) {
    if (listing_fd >= 0) close(listing_fd);
    return names;
  }
  while (const dirent* entry = readdir(listing)) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  closedir(listing);
  return names;
}

}  // namespace terrace
