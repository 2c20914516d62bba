#include "aio/queue/class_schedule.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace terrace {
namespace {

// Deficits of the class of the least weight grow by this, those of the others
// in proportion: small, so that shares are even over a few pieces.
constexpr int64_t kQuantumBytes = 256 << 10;

}  // namespace

ClassSchedule::ClassSchedule(absl::Span<const int> weights) {
  TERRACE_CHECK(weights.size() == kIoClasses);
  const int least = *std::min_element(weights.begin(), weights.end());
  TERRACE_CHECK(least > 0);
  for (int i = 0; i < kIoClasses; ++i) {
    quantum_bytes_[i] = weights[i] * kQuantumBytes / least;
  }
}

void ClassSchedule::Add(Transfer* transfer, int64_t piece_limit) {
  const IoClass io_class = transfer->request.io_class;
  const auto index = static_cast<int>(io_class);
  if (IsAwaited(io_class) && HasNoneOfFirst(index + 1)) {
    current_ = index;
    deficit_bytes_[current_] = transfer->NextPieceBytes(piece_limit);
  }
  ClassOf(*transfer).emplace(UrgencyOf(*transfer), transfer);
}

bool ClassSchedule::Remove(const Transfer& transfer) {
  return ClassOf(transfer).erase(UrgencyOf(transfer)) > 0;
}

bool ClassSchedule::HasNoneOfFirst(int classes) const {
  return std::all_of(transfers_, transfers_ + classes,
                     [](const auto& transfers) { return transfers.empty(); });
}

Transfer* ClassSchedule::Next(int64_t piece_limit) {
  if (empty()) return nullptr;
  while (true) {
    const auto& transfers = transfers_[current_];
    if (transfers.empty()) {
      deficit_bytes_[current_] = 0;  // silence saves up no share
    } else {
      Transfer* const first = transfers.begin()->second;
      if (deficit_bytes_[current_] >= first->NextPieceBytes(piece_limit)) {
        return first;
      }
    }
    current_ = (current_ + 1) % kIoClasses;
    deficit_bytes_[current_] += quantum_bytes_[current_];
  }
}

IoClass ClassSchedule::MostUrgent() const {
  int first = 0;
  while (HasNoneOfFirst(first + 1)) ++first;
  return static_cast<IoClass>(first);
}

bool ClassSchedule::HasFirstOfOther(IoDirection direction) const {
  return std::any_of(std::begin(transfers_), std::end(transfers_),
                     [direction](const auto& transfers) {
                       return !transfers.empty() &&
                              transfers.begin()->second->request.direction !=
                                  direction;
                     });
}

}  // namespace terrace
