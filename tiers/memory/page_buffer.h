// Bytes that direct I/O takes: page-aligned, zero at first. One thread.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace terrace {

class PageBuffer {
 public:
  explicit PageBuffer(int64_t size_bytes)
      : size_bytes_(static_cast<size_t>(size_bytes)),
        data_(mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~PageBuffer() {
    if (ok()) munmap(data_, size_bytes_);
  }
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;

  bool ok() const { return data_ != MAP_FAILED; }  // else there is no memory
  char* data() const { return static_cast<char*>(data_); }

 private:
  const size_t size_bytes_;
  void* const data_;
};

}  // namespace terrace
