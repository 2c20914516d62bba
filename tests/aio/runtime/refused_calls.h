// io_uring's system calls, refused as by a container's profile: by a filter of
// seccomp's, which nothing takes back. So in a child process of the test
// (own_child.h), and without a library.
#pragma once

#include <atomic>
#include <cstdint>

namespace terrace {

// What the filter is to refuse, and with which errno.
struct RefusedCall {
  static constexpr int kAnyOpcode = -1;

  int number = 0;           // __NR_io_uring_setup, _enter or _register
  int opcode = kAnyOpcode;  // of io_uring_register: IORING_REGISTER_...
  int error = 0;
};

// From now on, to all threads of this process and those that they start.
// False: there is no such filter here.
bool RefuseCall(const RefusedCall& refused);

// The calls of io_uring that the calling thread makes, and those that it
// starts, are counted and the ones named are refused. Stays until the process
// ends, which must be by _exit.
class CountedRefusal {
 public:
  // From the `first` call on, counted from 1, so many of them.
  CountedRefusal(int64_t first, int64_t times, int error)
      : first_(first), times_(times), error_(error) {}
  CountedRefusal(const CountedRefusal&) = delete;
  CountedRefusal& operator=(const CountedRefusal&) = delete;

  // False: there is no such filter here.
  bool Begin();

  int64_t refused() const { return refused_; }

 private:
  void Answer(int listener);

  const int64_t first_;
  const int64_t times_;
  const int error_;
  std::atomic<int64_t> refused_ = 0;
};

}  // namespace terrace
