// Which requests are served, in which order: the head of each queue is admitted
// when all it wants can be held, its fetches are begun, and it is ready when
// the last of them has ended. Mover only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "runtime/messages/answers.h"
#include "runtime/motion/links.h"
#include "runtime/motion/resting_tiers.h"
#include "runtime/motion/transfers.h"
#include "runtime/mover/customers.h"
#include "runtime/mover/group_places.h"
#include "runtime/residency/byte_pins.h"
#include "runtime/residency/queue_error.h"
#include "runtime/residency/working_tiers.h"
#include "runtime/residency/write_back.h"
#include "runtime/tensor/pin_book.h"
#include "runtime/tensor/tensor_table.h"

namespace terrace {

// All outlive the admission.
struct AdmissionParts {
  Customers* customers = nullptr;
  TensorTable* table = nullptr;
  PinBook* pins = nullptr;
  BytePins* byte_pins = nullptr;  // may be in a group's way
  TracePlanner* planner = nullptr;
  const WorkingTiers* working = nullptr;
  Transfers* transfers = nullptr;
  WriteBack* write_back = nullptr;
  const RestingTiers* resting = nullptr;
  Links* links = nullptr;  // hears which of them held groups up
  Clock* clock = nullptr;
};

class Admission {
 public:
  explicit Admission(AdmissionParts parts)
      : parts_(std::move(parts)),
        places_(*parts_.working, *parts_.write_back, *parts_.transfers) {
    counts_.tier_hits.resize(parts_.working->all().size());
  }

  // The queue's heads, as many as can be had.
  void Admit(Customer& customer, absl::Time now,
             std::vector<QueueError>* errors);
  // The two parts of it, for a group that no queue's order holds up. Look: when
  // pins and transfers allow all of it; failed: its queue is told. The group is
  // taken out of its queue by whoever called.
  using Tensors = absl::InlinedVector<Tensor*, 4>;
  enum class Turn : uint8_t { kNow, kLater, kFailed };
  Turn Look(Customer& customer, Group& group, Tensors* tensors,
            std::vector<QueueError>* errors);
  // `rooms`: of each tensor that has no copy on the queue's tier. `passing`:
  // for each, or none at all, what it passes through on its way to a device.
  void Begin(Customer& customer, Group& group,
             absl::Span<Tensor* const> tensors, GroupPlaces::Rooms* rooms,
             absl::Time now, GroupPlaces::Rooms passing = {});
  // Ends the waiting groups that were not admitted by their deadlines, wherever
  // they stand: ResourceExhausted, which names the `holders`. What stood behind
  // one may have its turn then.
  void Expire(Customer& customer, absl::Time now, const std::string& holders);
  bool HasExpired(const Customer& customer, absl::Time now) const;

  // A copy is whole; or the fetch has failed, and those that waited for it
  // fail with it.
  void OnWhole(const Arrival& arrival);
  void OnFetchFailed(const Tensor& tensor, const absl::Status& why);
  bool HasWaiters(const Tensor& tensor) const {
    return waiters_.contains(&tensor);
  }
  // Whether the head of an open queue waits to write it.
  bool WriterWaits(const Tensor& tensor) const;

  // A closed queue's groups are not wanted any more.
  void OnClosed(const Customer& customer);
  // From here on what becomes ready is cancelled.
  void Refuse() { refusing_ = true; }

  // Fetched ahead, and not asked for yet; or that failed, and is not tried
  // again before it is asked for.
  void NoteAhead(const Tensor& tensor);
  bool IsAhead(const Tensor& tensor) const {
    return ahead_.contains(tensor.id.value);
  }
  void NoteAheadFailed(const Tensor& tensor) {
    failed_ahead_.insert(tensor.id.value);
  }
  void ForgetAheadFailed(const Tensor& tensor) {
    failed_ahead_.erase(tensor.id.value);
  }
  bool HasFailedAhead(const Tensor& tensor) const {
    return failed_ahead_.contains(tensor.id.value);
  }

  struct Counts {
    int64_t demand_reads = 0;
    int64_t prefetch_reads = 0;
    int64_t prefetch_hits = 0;
    std::vector<int64_t> tier_hits;  // in the order of the working tiers

    int64_t hits() const {
      int64_t sum = 0;
      for (const int64_t each : tier_hits) sum += each;
      return sum;
    }
  };
  const Counts& counts() const { return counts_; }
  // Those that open queues want, for the books.
  void AddWanted(WantedTensors* wanted) const;

 private:
  void NoteAccess(const Customer& customer, Group& group);
  bool TryAdmit(Customer& customer, Group& group, absl::Time now,
                std::vector<QueueError>* errors);
  bool CanPin(const Want& want, Tensor& tensor, Customer& customer,
              Group& group);
  Grant MakeGrant(Customer& customer, const Want& want,
                  int64_t* beyond_bytes) const;
  void Hold(Customer& customer, const Want& want, Tensor& tensor,
            Reservation room, Reservation passing, Group& group);
  // `last`: the edge of the arrival that it waited for, if it did.
  void Finish(Customer& customer, Group& group, Edge last);
  void CountBlocked(const Customer& customer, const Group& group,
                    WaitCause cause, Edge last, absl::Time now);
  void ReleaseHolds(const Customer& customer, Group& group);
  void EraseAdmitted(Customer& customer, uint64_t group);
  void CountHit(const Tensor& tensor, Group& group);

  const AdmissionParts parts_;
  const GroupPlaces places_;
  // By id; with the customer's.
  std::unordered_map<uint64_t, std::pair<int64_t, Group>> admitted_;
  // Groups that wait for a copy to be whole.
  absl::flat_hash_map<const Tensor*, std::vector<uint64_t>> waiters_;
  absl::flat_hash_set<int64_t> ahead_;
  absl::flat_hash_set<int64_t> failed_ahead_;
  Counts counts_;
  bool refusing_ = false;
};

}  // namespace terrace
