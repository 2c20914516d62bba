#include "base/directory_names.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/types.h>

#include <utility>

#include "base/process.h"

namespace terrace {

std::vector<std::string> NamesIn(int directory_fd) {
  // A descriptor of its own: the listing moves its position.
  const OwnDescriptor listed = OwnDescriptor::OpenAt(
      directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  std::vector<std::string> names;
  if (!listed.ok()) return names;
  alignas(dirent64) char entries[16 << 10];
  ssize_t size = 0;
  while ((size = getdents64(listed.get(), entries, sizeof(entries))) > 0) {
    for (ssize_t at = 0; at < size;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(entries + at);
      std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(std::move(name));
      at += entry->d_reclen;
    }
  }
  return names;
}

}  // namespace terrace
