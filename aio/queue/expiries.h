// When to look whether a transfer has expired. Time without such a look makes
// no transfer late (base/watch.h).
//
//   expiries.Add(transfer);                      // it has just arrived
//   expiries.Look(now);                          // each turn
//   while (Transfer* const due = expiries.TakeDue(now)) {
//     const absl::Time at = expiries.ExpiryOf(*due, silent_since);
//     if (at > now) { expiries.LookAt(at, *due); } else { ...it is late... }
//   }
//
// Transfers are the caller's. One thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/time/time.h"
#include "aio/queue/transfer.h"
#include "base/watch.h"

namespace terrace {

class Expiries {
 public:
  // From its arrival on. One with an infinite timeout is never due.
  void Add(Transfer& transfer) {
    if (due_.empty()) watch_.Begin(transfer.enqueued);
    watch_.Expect(transfer.request.timeout);
    LookAt(transfer.enqueued + transfer.request.timeout, transfer);
  }
  void LookAt(absl::Time at, Transfer& transfer) {
    transfer.check_at = at;
    if (at < absl::InfiniteFuture()) due_.emplace(KeyOf(transfer), &transfer);
  }
  void Remove(const Transfer& transfer) { due_.erase(KeyOf(transfer)); }

  void Look(absl::Time now) { watch_.Look(now); }

  // Takes out one that is to be looked at by now; null: there is none.
  Transfer* TakeDue(absl::Time now) {
    if (due_.empty() || due_.begin()->first.first > now) return nullptr;
    Transfer* const transfer = due_.begin()->second;
    due_.erase(due_.begin());
    return transfer;
  }

  // Of a transfer that the device has left unanswered since then.
  absl::Time ExpiryOf(const Transfer& transfer, absl::Time since) const {
    return std::max(since, watch_.since()) + transfer.request.timeout;
  }

  // The next look; InfiniteFuture: nothing can expire.
  absl::Time NextEvent() const {
    if (due_.empty()) return absl::InfiniteFuture();
    return std::min(due_.begin()->first.first, watch_.next_look());
  }

 private:
  using Key = std::pair<absl::Time, uint64_t>;  // when, and the tag
  static Key KeyOf(const Transfer& transfer) {
    return {transfer.check_at, transfer.request.tag};
  }

  std::map<Key, Transfer*> due_;
  Watch watch_;
};

}  // namespace terrace
