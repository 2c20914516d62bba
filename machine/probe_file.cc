#include "machine/probe_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace terrace {

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Descriptor OpenProbeFile(const std::string& directory) {
  const int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
    return Descriptor(fd);
  }
  std::string name = absl::StrCat(directory, "/.terrace-probe-XXXXXX");
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return Descriptor(named);
}

}  // namespace terrace
