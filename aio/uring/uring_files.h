// The files of a ring's engine, the ring's own table of them, where a file
// costs a request less, and their shares of the kernel's worker threads.
//
// What cannot be started without waiting is moved by such a worker: all of a
// file that the page cache or a server in user space stands before, of others
// what makes them longer. They are the submitting thread's, whatever file they
// are for, and one that does not answer keeps those that it has: so there are
// as many as all files may keep busy, and a file that needs them for all that
// it moves has no more in flight than its share.
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
    bool starts_in_worker = false;  // whether or not it could without
    bool leaves_pages = false;
    bool needs_workers = false;  // for all that it moves
  };
  // Of the table, behind those of files.
  static constexpr int kSparePlace = 128;

  // Before the first file: a table that is filled one by one. An errno: there
  // is none.
  int MakeTable(io_uring* ring);

  // The index of a descriptor that stays open.
  int Add(io_uring* ring, int fd);
  // How many requests of it may be in flight.
  int Slots(int index) const;
  // No descriptor for an index that Add never returned.
  File Find(int index) const;

  // ", files registered", or how many of them; and why workers have no limit.
  std::string ToString() const;

 private:
  void LimitWorkers(io_uring* ring);

  int worker_error_ = 0;  // an errno
  std::vector<File> files_;
};

}  // namespace terrace
