// What every question of terrace-bench shares: the registry of subcommands,
// flags, rounds that interleave the variants, and rows that are ratios.
//
// A subcommand is one line in main.cc: its key, a sentence, its function.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::bench {

// "--name value", "--name=value", or "--name" alone (its value is empty).
class Flags {
 public:
  // InvalidArgument for anything that is not a flag, or not in `known`.
  static absl::StatusOr<Flags> Parse(int argc, const char* const* argv,
                                     const std::vector<std::string>& known);

  bool has(const std::string& name) const { return values_.contains(name); }
  std::string text(const std::string& name, const std::string& otherwise) const;
  // Whole numbers, with K, M or G for 2^10, 2^20, 2^30.
  absl::StatusOr<int64_t> number(const std::string& name,
                                 int64_t otherwise) const;

 private:
  std::map<std::string, std::string> values_;
};

struct Subcommand {
  const char* key;
  const char* sentence;
  std::vector<std::string> flags;  // "path", ... besides "json"
  absl::Status (*run)(const Flags& flags);
};

struct Spread {
  double minimum = 0;
  double median = 0;
  double maximum = 0;
};
Spread SpreadOf(std::vector<double> values);

// One variant of a row: moves or computes once, returns how much per second.
struct Variant {
  std::string name;
  std::function<absl::StatusOr<double>()> run;
};

// A row: variants against a bound, each once per round, in rotated order.
// Ratios are taken within a round, then their median.
struct Row {
  std::string key;
  std::string unit;  // of the rates
  Variant subject;
  Variant bound;
};

struct RowResult {
  Spread subject;
  Spread bound;
  Spread ratio;  // subject / bound, of the same round
};

// The first round warms up and is dropped.
absl::StatusOr<RowResult> RunRow(const Row& row, int rounds);

// Prints one row: a line of the table, or one JSON object with `json`;
// `extra` are further members, already in JSON.
void PrintHeader(bool json);
void PrintRow(const Row& row, const RowResult& result, bool json,
              const std::string& extra = "");

// Monotonic, in seconds.
double Seconds();

}  // namespace terrace::bench
