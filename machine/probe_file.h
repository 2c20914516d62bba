// A file to try a path with, that leaves nothing behind.
#pragma once

#include <string>
#include <utility>

namespace terrace {

// Owns a descriptor; -1 is none.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  int get() const { return fd_; }

 private:
  int fd_;
};

// A file without a name below `directory`; where the file system has none, a
// file whose name is gone at once. -1: errno says why not.
Descriptor OpenProbeFile(const std::string& directory);

}  // namespace terrace
