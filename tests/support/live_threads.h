// How many threads this process has made and not joined, as the kernel lists
// them. One that was joined may stay in that list for a while, on its way out;
// it does not count, nor do the worker threads that the kernel itself makes
// for a ring. Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace terrace {

inline int64_t LiveThreads() {
  constexpr uint64_t kExiting = 0x4;    // PF_EXITING, before a join returns
  constexpr uint64_t kIoWorker = 0x10;  // PF_IO_WORKER
  int64_t threads = 0;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) continue;  // gone since
    // The name may hold anything; six fields lie between it and the flags.
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    std::string skipped;
    for (int i = 0; i < 6; ++i) fields >> skipped;
    uint64_t flags = 0;
    fields >> flags;
    if ((flags & (kExiting | kIoWorker)) == 0) ++threads;
  }
  return threads;
}

}  // namespace terrace
