#include "daemon/log/log_lines.h"

#include <algorithm>

namespace terrace {

LogLines::~LogLines() { Take(); }

void LogLines::Add(int level, const std::string& text) {
  auto line = std::make_unique<LogLine>(
      LogLine{level, text, std::chrono::system_clock::now(), next_++});
  std::atomic<LogLine*>& place = lines_[line->number % kMost];
  delete place.exchange(line.release());
}

std::vector<std::unique_ptr<LogLine>> LogLines::Take() {
  std::vector<std::unique_ptr<LogLine>> taken;
  for (std::atomic<LogLine*>& place : lines_) {
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    taken.emplace_back(place.exchange(nullptr));
  }
  // One whose place was another's meanwhile is late by that one.
  std::sort(taken.begin(), taken.end(),
            [](const auto& a, const auto& b) { return a->number < b->number; });
  return taken;
}

}  // namespace terrace
