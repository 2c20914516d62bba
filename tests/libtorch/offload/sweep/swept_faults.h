// The faults of the sweep, and what of a training they are aimed at.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/support/fault_engine.h"

namespace terrace {

// What the fault is aimed at, and from where on calls are counted.
enum class Phase : uint8_t {
  kForward,  // while the updates of the step before go on
  kBackward,
  kBlocking,  // a step without overlap
  kUpdates,   // a step whose updates are waited for
  kOverlap,   // a step, and the forward that comes while its updates go on
  kClose,     // while updates go on
};
inline constexpr const char* kPhaseNames[] = {
    "Forward", "Backward", "BlockingStep", "Updates", "Overlap", "Close"};

enum class Lasts : uint8_t {
  kOnce,
  kPlace,  // each later call there fails too, until faults end
  kOn,     // each later call
};

struct SweptFault {
  const char* name;
  CallFilter filter;
  Fault fault;
  Lasts lasts = Lasts::kOnce;
  absl::StatusCode code = absl::StatusCode::kOk;  // it heals, and is not told
  const char* cause = "";
};

inline constexpr CallFilter kReads = CallFilter::kReads;
inline constexpr CallFilter kWrites = CallFilter::kWrites;

inline const SweptFault kFaults[] = {
    {"ShortRead", kReads, {FaultKind::kShort}},
    {"ReadErrorOnce", kReads, {FaultKind::kError, EIO}},
    {"ReadError",
     kReads,
     {FaultKind::kError, EIO},
     Lasts::kPlace,
     absl::StatusCode::kDataLoss,
     "EIO"},
    {"ReadRefused",
     kReads,
     {FaultKind::kError, ENOMEM},
     Lasts::kPlace,
     absl::StatusCode::kUnavailable,
     "ENOMEM"},
    {"EndlessRead",
     kReads,
     {FaultKind::kNever},
     Lasts::kOnce,
     absl::StatusCode::kDeadlineExceeded,
     "deadline"},
    {"ShortWrite", kWrites, {FaultKind::kShort}},
    {"WriteErrorOnce",
     kWrites,
     {FaultKind::kError, EIO},
     Lasts::kOnce,
     absl::StatusCode::kUnavailable,
     "EIO"},
    {"WriteError",
     kWrites,
     {FaultKind::kError, EIO},
     Lasts::kOn,
     absl::StatusCode::kUnavailable,
     "EIO"},
    {"DiskFull",
     kWrites,
     {FaultKind::kError, ENOSPC},
     Lasts::kOn,
     absl::StatusCode::kResourceExhausted,
     "ENOSPC"},
    {"EndlessWrite",
     kWrites,
     {FaultKind::kNever},
     Lasts::kOnce,
     absl::StatusCode::kDeadlineExceeded,
     "deadline"},
};

inline std::ostream& operator<<(std::ostream& out, const SweptFault& fault) {
  return out << fault.name;
}

struct SweepCase {
  Phase phase;
  SweptFault fault;
};

inline std::string NameOf(const SweepCase& each) {
  return absl::StrCat(each.fault.name, "In",
                      kPhaseNames[static_cast<size_t>(each.phase)]);
}

inline std::ostream& operator<<(std::ostream& out, const SweepCase& each) {
  return out << NameOf(each);
}

inline std::vector<SweepCase> AllCases() {
  std::vector<SweepCase> cases;
  for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kBlocking,
                            Phase::kUpdates, Phase::kOverlap, Phase::kClose}) {
    for (const SweptFault& fault : kFaults) cases.push_back({phase, fault});
  }
  return cases;
}

// Every call of each phase, in place of a few: TERRACE_SWEEP=all.
inline bool TakesAll() {
  const char* const wanted = std::getenv("TERRACE_SWEEP");
  return wanted != nullptr && std::string(wanted) == "all";
}

}  // namespace terrace
