// Whether the library's threads sleep for as long as nothing is to be done: the
// kernel counts how often each has gone to sleep.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace terrace {

// By the name and number of each thread whose name begins with "terrace-".
using ThreadSwitches = std::map<std::string, int64_t>;

inline ThreadSwitches SwitchesNow() {
  ThreadSwitches switches;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream comm(task.path() / "comm");
    std::string name;
    if (!std::getline(comm, name) || !absl::StartsWith(name, "terrace-")) {
      continue;
    }
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      if (word != "voluntary_ctxt_switches:") continue;
      status >>
          switches[absl::StrCat(name, " ", task.path().filename().string())];
    }
  }
  return switches;
}

// Waits until the threads have settled, and then looks at them for 2 s, in
// which none may wake. Some thread of each of these names must be there.
inline void ExpectQuiet(const std::vector<std::string>& names) {
  const auto pause = [](absl::Duration time) {
    std::this_thread::sleep_for(absl::ToChronoMilliseconds(time));
  };
  ThreadSwitches before;
  for (int look = 0; look < 100; ++look) {
    const ThreadSwitches now = SwitchesNow();
    if (now == before) break;
    before = now;
    pause(absl::Milliseconds(100));
  }
  for (const std::string& name : names) {
    EXPECT_TRUE(absl::c_any_of(before, [&](const auto& thread) {
      return absl::StartsWith(thread.first, absl::StrCat(name, " "));
    })) << name;
  }
  pause(absl::Seconds(2));
  EXPECT_EQ(SwitchesNow(), before);
}

}  // namespace terrace
