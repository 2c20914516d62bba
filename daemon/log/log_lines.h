// Lines on their way to the thread that writes a log: as many as there is room
// for, of which the newest are kept. Who says one takes no lock, so that
// nobody waits for another one, nor for the thread that writes, wherever they
// have stopped.
//
// Add is thread-safe; Take is one thread's.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace terrace {

struct LogLine {
  int level = 0;  // of the log's own kinds
  std::string text;
  std::chrono::system_clock::time_point said_at;
  uint64_t number = 0;
};

class LogLines {
 public:
  static constexpr size_t kMost = 1024;

  LogLines() = default;
  ~LogLines();
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  // In place of the oldest one, where there is no room.
  void Add(int level, const std::string& text);
  // All that are there, in the order in which they were said.
  std::vector<std::unique_ptr<LogLine>> Take();

 private:
  std::atomic<uint64_t> next_ = 0;
  std::array<std::atomic<LogLine*>, kMost> lines_ = {};
};

}  // namespace terrace
