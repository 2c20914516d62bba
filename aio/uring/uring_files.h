// The files of a ring's engine, and the ring's own table of them: a file that
// is registered there costs a request less.
//
// One thread at a time.
#pragma once

#include <string>
#include <vector>

struct io_uring;

namespace terrace {

class UringFiles {
 public:
  struct File {
    int fd = -1;  // or, if it is registered, its place in the table
    bool is_registered = false;
    bool starts_in_worker = false;  // of the kernel
    bool leaves_pages = false;
  };
  // Of the table, behind those of files.
  static constexpr int kSparePlace = 128;

  // Before the first file. False: this kernel has no table to fill one by one.
  bool MakeTable(io_uring* ring);

  // The index of a descriptor that stays open.
  int Add(io_uring* ring, int fd);
  // No descriptor for an index that Add never returned.
  File Find(int index) const;

  // ", files registered", or how many of them.
  std::string ToString() const;

 private:
  bool has_table_ = false;
  std::vector<File> files_;
};

}  // namespace terrace
