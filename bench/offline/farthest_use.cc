#include "bench/offline/farthest_use.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace terrace::bench {
namespace {

absl::StatusOr<OperandUse> ParseUse(absl::string_view word) {
  OperandUse use;
  const size_t colon = word.rfind(':');
  absl::string_view bytes =
      colon == absl::string_view::npos ? "" : word.substr(colon + 1);
  for (; !bytes.empty(); bytes.remove_suffix(1)) {
    const char last = bytes.back();
    if (last == 'w') {
      use.writes = true;
    } else if (last == 'n') {
      use.makes = true;
    } else if (last == 'e') {
      use.ends = true;
    } else if (last == 'd') {
      use.drops = true;
    } else {
      break;
    }
  }
  if (!absl::SimpleAtoi(bytes, &use.bytes) || use.bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", word, "' is no name:bytes"));
  }
  use.tensor = std::string(word.substr(0, colon));
  return use;
}

// Memory as the operations go on.
class Replay {
 public:
  Replay(absl::Span<const Operation> trace, int64_t budget_bytes)
      : trace_(trace), budget_bytes_(budget_bytes) {
    for (size_t i = 0; i < trace.size(); ++i) {
      for (const OperandUse& use : trace[i]) {
        if (use.drops) continue;
        uses_[use.tensor].push_back(static_cast<int64_t>(i));
      }
    }
  }

  void Run(int64_t step, bool counts) {
    counts_ = counts;
    for (size_t i = 0; i < trace_.size(); ++i) {
      now_ = step * size() + static_cast<int64_t>(i);
      Operate(trace_[i]);
    }
  }
  const OfflineTraffic& traffic() const { return traffic_; }

 private:
  struct Here {
    int64_t bytes = 0;
    int64_t next_use = 0;
    bool dirty = false;
  };

  int64_t size() const { return static_cast<int64_t>(trace_.size()); }

  // The first after now, over all steps.
  int64_t NextUse(const std::string& tensor) const {
    const std::vector<int64_t>& uses = uses_.at(tensor);
    const int64_t step = now_ / size();
    const auto next = std::upper_bound(uses.begin(), uses.end(), now_ % size());
    if (next != uses.end()) return step * size() + *next;
    return (step + 1) * size() + uses.front();
  }

  void Operate(const Operation& operation) {
    // The operands stay: they do not stand in the order meanwhile.
    for (const OperandUse& use : operation) {
      const auto found = here_.find(use.tensor);
      if (found == here_.end()) continue;
      order_.erase({found->second.next_use, use.tensor});
    }
    for (const OperandUse& use : operation) Bring(use);
    traffic_.beyond_bytes =
        std::max(traffic_.beyond_bytes, used_bytes_ - budget_bytes_);
    for (const OperandUse& use : operation) {
      if (use.drops && !here_.contains(use.tensor)) continue;
      Here& here = here_.at(use.tensor);
      here.dirty |= use.writes || use.makes;
      if (use.ends || use.drops) {
        used_bytes_ -= here.bytes;
        here_.erase(use.tensor);
        continue;
      }
      here.next_use = NextUse(use.tensor);
      order_.insert({here.next_use, use.tensor});
    }
    MakeRoom(0);  // what was beyond the budget does not stay
  }

  void Bring(const OperandUse& use) {
    if (use.drops || here_.contains(use.tensor)) return;
    MakeRoom(use.bytes);
    used_bytes_ += use.bytes;
    here_[use.tensor].bytes = use.bytes;
    if (!use.makes && counts_) traffic_.bytes_read += use.bytes;
  }

  void MakeRoom(int64_t bytes) {
    while (used_bytes_ + bytes > budget_bytes_ && !order_.empty()) {
      const auto last = std::prev(order_.end());
      const auto victim = here_.find(last->second);
      used_bytes_ -= victim->second.bytes;
      if (victim->second.dirty && counts_) {
        traffic_.bytes_written += victim->second.bytes;
      }
      here_.erase(victim);
      order_.erase(last);
    }
  }

  const absl::Span<const Operation> trace_;
  const int64_t budget_bytes_;
  absl::flat_hash_map<std::string, std::vector<int64_t>> uses_;
  std::map<std::string, Here> here_;
  std::set<std::pair<int64_t, std::string>> order_;  // by next use
  int64_t used_bytes_ = 0;
  int64_t now_ = 0;
  bool counts_ = false;
  OfflineTraffic traffic_;
};

}  // namespace

absl::StatusOr<std::vector<Operation>> ParseTrace(absl::string_view text) {
  std::vector<Operation> trace;
  absl::flat_hash_map<std::string, int64_t> sizes;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    Operation operation;
    for (const absl::string_view word :
         absl::StrSplit(line, ' ', absl::SkipEmpty())) {
      absl::StatusOr<OperandUse> use = ParseUse(word);
      if (!use.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "line ", number, ": ", absl::string_view(use.status().message())));
      }
      const int64_t size =
          sizes.try_emplace(use->tensor, use->bytes).first->second;
      if (size != use->bytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("line ", number, ": '", use->tensor, "' of ",
                         use->bytes, " bytes had ", size));
      }
      operation.push_back(*std::move(use));
    }
    if (!operation.empty()) trace.push_back(std::move(operation));
  }
  return trace;
}

OfflineTraffic FarthestNextUse(absl::Span<const Operation> trace,
                               int64_t budget_bytes, int steps, int warm) {
  Replay replay(trace, budget_bytes);
  for (int step = 0; step < steps; ++step) replay.Run(step, step >= warm);
  return replay.traffic();
}

}  // namespace terrace::bench
