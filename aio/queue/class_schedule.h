// Which transfer's next piece is to go: classes by deficit round robin
// (Shreedhar and Varghese, 1995) in bytes, and within each what is due first.
//
//   ClassSchedule schedule({4, 4, 1, 1});
//   schedule.Add(&transfer, piece_limit);
//   while (Transfer* const next = schedule.Next(piece_limit)) {
//     if (...no room...) break;
//     schedule.Charge(next->NextPieceBytes(piece_limit));
//     ... issue it; if all of it is issued: schedule.Remove(*next) ...
//   }
//
// Holds transfers with bytes to issue, which are the caller's. One thread at a
// time.
#pragma once

#include <cstdint>
#include <map>

#include "absl/types/span.h"
#include "aio/io_transfer.h"
#include "aio/queue/transfer.h"

namespace terrace {

class ClassSchedule {
 public:
  // Of each IoClass, > 0.
  explicit ClassSchedule(absl::Span<const int> weights);

  // What is waited for goes next if none of its class or a more urgent one is
  // there: it waits for room only, not for what is left of the other classes'
  // turns.
  void Add(Transfer* transfer, int64_t piece_limit);
  // False: it is not there. Before its class or arrival change.
  bool Remove(const Transfer& transfer);

  // The transfer whose next piece is to go; null when there is none. Changes
  // only the turn, so that it may be asked again when there is room.
  Transfer* Next(int64_t piece_limit);
  // The bytes of the transfer that Next returned last are issued.
  void Charge(int64_t bytes) { deficit_bytes_[current_] -= bytes; }

  bool empty() const { return HasNoneOfFirst(kIoClasses); }
  // Of those that are there: what waits behind Next's turn, too. Not empty.
  IoClass MostUrgent() const;
  // Whether one that is first in its class moves bytes the other way.
  bool HasFirstOfOther(IoDirection direction) const;

 private:
  std::map<Urgency, Transfer*>& ClassOf(const Transfer& transfer) {
    return transfers_[static_cast<int>(transfer.request.io_class)];
  }

  // Of so many classes, from the most urgent one on.
  bool HasNoneOfFirst(int classes) const;

  int64_t quantum_bytes_[kIoClasses];  // by which its deficit grows in a turn
  std::map<Urgency, Transfer*> transfers_[kIoClasses];
  int64_t deficit_bytes_[kIoClasses] = {};
  int current_ = 0;
};

}  // namespace terrace
