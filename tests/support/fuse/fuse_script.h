// What the FUSE server of fuse_fault_server.cc is told to do to which calls:
// the words of its control lines.
//
//   fail <call> <first> <times> <kind> <value>
//   clear       no faults, counts from 0; what is held goes on
//   count       answers "count <calls> <faults>", since the last clear
//
// A call is one request of the kernel's: read or write, of at most 1 MiB, grow,
// or remove, of a file or a folder. `first` counts them from 1 since the line
// was read. The kinds: error, its value an errno; short, the bytes that it
// moves; delay, milliseconds; hold, nothing. Thread-safe.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace terrace {

enum class FuseCall : uint8_t { kRead, kWrite, kGrow, kRemove };

struct FuseFault {
  enum class Kind : uint8_t { kNone, kError, kShort, kDelay, kHold };
  FuseCall call = FuseCall::kRead;
  int64_t first = 1;
  int64_t times = INT64_MAX / 2;  // successive calls
  Kind kind = Kind::kNone;
  int64_t value = 0;
};

inline std::string FuseFaultLine(const FuseFault& fault) {
  constexpr const char* kCalls[] = {"read", "write", "grow", "remove"};
  constexpr const char* kKinds[] = {"none", "error", "short", "delay", "hold"};
  std::ostringstream line;
  line << "fail " << kCalls[static_cast<int>(fault.call)] << ' ' << fault.first
       << ' ' << fault.times << ' ' << kKinds[static_cast<int>(fault.kind)]
       << ' ' << fault.value;
  return line.str();
}

class FuseScript {
 public:
  // The answer to a control line; "bad: <line>" when it makes no sense.
  std::string Obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    MutexLock lock(mutex_);
    if (verb == "count") {
      std::ostringstream answer;
      int64_t calls = 0;
      for (const int64_t each : calls_) calls += each;
      answer << "count " << calls << ' ' << given_;
      return answer.str();
    }
    if (verb == "clear") {
      faults_.clear();
      for (int64_t& calls : calls_) calls = 0;
      given_ = 0;
      ++clears_;
      changed_.SignalAll();
      return "ok";
    }
    FuseFault fault;
    std::string call;
    std::string kind;
    words >> call >> fault.first >> fault.times >> kind >> fault.value;
    if (verb != "fail" || !words || !Read(call, kind, &fault)) {
      return "bad: " + line;
    }
    fault.first += calls_[static_cast<int>(fault.call)];
    faults_.push_back(fault);
    return "ok";
  }

  // Counts one call, sits out its delay or hold, and says what else to do.
  FuseFault Next(FuseCall call) {
    MutexLock lock(mutex_);
    const int64_t n = ++calls_[static_cast<int>(call)];
    FuseFault given;
    for (const FuseFault& fault : faults_) {
      if (fault.call != call || n < fault.first) continue;
      if (n - fault.first < fault.times) given = fault;
    }
    if (given.kind == FuseFault::Kind::kNone) return given;
    ++given_;
    const int64_t clears = clears_;
    if (given.kind == FuseFault::Kind::kHold) {
      while (clears_ == clears) changed_.Wait(mutex_);
    } else if (given.kind == FuseFault::Kind::kDelay) {
      const absl::Time end =
          SystemClock().Now() + absl::Milliseconds(given.value);
      for (absl::Time now = SystemClock().Now(); now < end && clears_ == clears;
           now = SystemClock().Now()) {
        changed_.WaitFor(mutex_, end - now);
      }
    }
    return given;
  }

 private:
  static bool Read(const std::string& call, const std::string& kind,
                   FuseFault* fault) {
    using Kind = FuseFault::Kind;
    fault->call = call == "write"    ? FuseCall::kWrite
                  : call == "grow"   ? FuseCall::kGrow
                  : call == "remove" ? FuseCall::kRemove
                                     : FuseCall::kRead;
    fault->kind = kind == "error"   ? Kind::kError
                  : kind == "short" ? Kind::kShort
                  : kind == "delay" ? Kind::kDelay
                  : kind == "hold"  ? Kind::kHold
                                    : Kind::kNone;
    return fault->kind != Kind::kNone &&
           (fault->call != FuseCall::kRead || call == "read");
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<FuseFault> faults_ ABSL_GUARDED_BY(mutex_);
  int64_t calls_[4] ABSL_GUARDED_BY(mutex_) = {};
  int64_t given_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t clears_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
