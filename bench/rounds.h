// Contenders measured in interleaved rounds: each once a round, in rotated
// order, behind the gate, and compared within the round only. What the
// machine does between two rounds then falls out of every ratio.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/gate.h"
#include "bench/harness.h"

namespace terrace::bench {

// One run.
struct Sample {
  double rate = 0;            // MiB/s
  double cpu_ms_per_gib = 0;  // user and system, of this process
};

// Times what lies between its construction and Stop.
class Stopwatch {
 public:
  Stopwatch();
  Sample Stop(int64_t bytes) const;

 private:
  double start_ = 0;
  double cpu_ = 0;
};

struct Contender {
  std::string name;
  std::function<absl::StatusOr<Sample>()> run;
  // Called when the last run counts: it was not the one that warms up, and the
  // gate does not ask for another.
  std::function<void()> keep = {};
};

enum class Figure : uint8_t { kRate, kCpu };

class Rounds {
 public:
  // The first round warms up and is dropped.
  static absl::StatusOr<Rounds> Run(const std::vector<Contender>& contenders,
                                    int rounds, Gate& gate);

  int size() const { return static_cast<int>(names_.size()); }
  const std::string& name(int contender) const { return names_[contender]; }
  Spread Of(int contender, Figure figure) const;
  // Of subject / bound, each ratio of one round.
  Spread Ratio(int subject, int bound, Figure figure) const;

 private:
  double At(int contender, size_t round, Figure figure) const {
    const Sample& sample = samples_[contender][round];
    return figure == Figure::kRate ? sample.rate : sample.cpu_ms_per_gib;
  }

  std::vector<std::string> names_;
  std::vector<std::vector<Sample>> samples_;  // of a contender, by round
};

}  // namespace terrace::bench
