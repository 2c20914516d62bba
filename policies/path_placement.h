// Which path an extent goes to: whole extents, by weighted least finish time
// at the rates that were measured, which is the rule of weighted fair queueing
// (Demers, Keshav, Shenker 1989). One thread at a time.
//
// Each write-back rewrites a whole extent, so it may go to another path than
// the extent came from at no cost: shares follow the rates within the time in
// which everything is written once, and no byte is moved for balance alone.
// Every path has a clock of what was placed on it; the next extent goes where
// that would be least after it. So neighbours in time of writing, which are
// neighbours in the next step's reading, are spread in proportion.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "policies/measured_rate.h"

namespace terrace {

// What was measured of a path before the job: its machine profile.
struct PathPrior {
  double read_bytes_per_second = 0;  // 0: unknown
  double write_bytes_per_second = 0;
};

// Bytes per second that are read and written back again; 0: unknown. One
// direction that is unknown counts as the other.
double RoundTripRate(const PathPrior& path);

struct PathLoad {
  int64_t placed_bytes = 0;
  double bytes_per_second = 1;  // relative weight, > 0
  bool usable = true;           // not degraded, not full
};

// The index, or -1 when no path is usable. Ties go to the lowest index.
int ChoosePath(absl::Span<const PathLoad> paths, int64_t size_bytes);

// What a path can be trusted with.
enum class PathTrust : uint8_t {
  kGood,
  kOnTrial,   // failed, and one write may find out whether it still does
  kDoubtful,  // its last read failed; written to only where none is better
  kRefusing,  // its last write failed
};

// One for each path.
using PathFlags = absl::InlinedVector<bool, 4>;

class Placement {
 public:
  // Priors: one for each path, or none.
  Placement(int paths, absl::Span<const PathPrior> priors);

  MeasuredRate& read_rate(int path) { return at(path).read; }
  MeasuredRate& write_rate(int path) { return at(path).write; }
  const MeasuredRate& read_rate(int path) const { return at(path).read; }
  const MeasuredRate& write_rate(int path) const { return at(path).write; }

  // How transfers end, for good. `failures` is what failures(path) said when
  // the write was begun: one that was under way beside one that failed does
  // not show that the path does better now.
  void OnRead(int path, bool ok) { at(path).reads_fail = !ok; }
  void OnWritten(int path, bool ok, int64_t failures);
  int64_t failures(int path) const { return at(path).failures; }  // of writes
  // From here on each path that refuses may be tried once more, but for those
  // that `hold` says.
  void TryAgain(const PathFlags& hold);
  PathTrust trust(int path) const;
  // A write was refused and none has succeeded since.
  bool refuses(int path) const { return at(path).refuses; }
  bool reads_fail(int path) const { return at(path).reads_fail; }

  // For a new extent; `placed_bytes` and `usable` per path. -1: none will do.
  int ChooseHome(absl::Span<const int64_t> placed_bytes,
                 const PathFlags& usable, int64_t size_bytes) const;

  // For the write-back of an extent at `home`: home itself unless another of
  // the usable is better by more than one such extent, or home cannot be
  // trusted; -1: none of the usable can be. Changes nothing.
  int ChooseTarget(int home, const PathFlags& usable, int64_t size_bytes) const;
  // It goes there; but it was not begun, or was cancelled.
  void OnPlaced(int path, int64_t size_bytes);
  void OnGivenUp(int path) { at(path).trying = false; }
  // The write that finds out about a path on trial is under way.
  bool trying() const;

 private:
  using Rates = absl::InlinedVector<double, 4>;  // of each path
  struct Path {
    MeasuredRate read;
    MeasuredRate write;
    bool refuses = false;
    bool reads_fail = false;
    int64_t failures = 0;
    bool trial = false;   // refuses; the next write is to find out
    bool trying = false;  // that one is under way
    double clock = 0;     // seconds of what was placed
  };

  const Path& at(int path) const { return paths_[static_cast<size_t>(path)]; }
  Path& at(int path) { return paths_[static_cast<size_t>(path)]; }
  // What all paths are compared by at one moment: their rates, and the clocks
  // of those that can be trusted.
  struct Field {
    Rates rates;
    double earliest = std::numeric_limits<double>::infinity();
    double latest = -std::numeric_limits<double>::infinity();
    double slowest = 0;  // seconds of the largest extent
    double Seconds(int path, int64_t size_bytes) const {
      return static_cast<double>(size_bytes) / rates[static_cast<size_t>(path)];
    }
  };
  // Per path; unknown ones are taken to be as fast as the mean of the others.
  Rates RoundTripRates() const;
  Field MakeField() const;
  double FinishTime(const Field& field, int path, int64_t size_bytes) const;

  std::vector<Path> paths_;
  int64_t largest_bytes_ = 0;  // that was placed so far
};

}  // namespace terrace
