// Which groups of queues of bytes are served: any of them that can be had, in
// the order in which they came. One that finds no room holds up no other, but
// what leaves for it makes room for itself, for older ones, and for those whose
// askers use pins. Each has as many idle pins asked back as it lacks room. A
// group that waits to write a tensor keeps later groups from it, and one that
// waits to read it later writers, unless these use pins.
//
// Where nothing leaves and all pins belong to holders that wait, no room will
// come: the oldest group whose asker uses pins is had beyond the budget, or the
// oldest of all where none does.
//
// Groups at devices are looked at with those of the first memory, all in the
// order of their age, as they may need room there too; so is what leaves a
// device. Both count among those that lack room of memory. Where none will come
// there, groups of memory are had beyond the budget first; then a group of the
// device ends with ResourceExhausted, as nothing of a device is beyond it.
// Mover only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "prefetch/trace_planner.h"
#include "runtime/messages/ports.h"
#include "runtime/messages/requests.h"
#include "runtime/mover/admission.h"
#include "runtime/mover/customers.h"
#include "runtime/mover/read_ahead.h"
#include "runtime/residency/byte_pins.h"
#include "runtime/residency/byte_room.h"
#include "runtime/residency/passage/memory_passage.h"
#include "runtime/residency/queue_error.h"
#include "runtime/residency/working_tiers.h"
#include "runtime/residency/write_back.h"
#include "runtime/tensor/tensor_table.h"
#include "tiers/memory/spill/spill_room.h"

namespace terrace {

// All outlive the admission.
struct ByteAdmissionParts {
  const Ports* ports = nullptr;
  Customers* customers = nullptr;
  const TensorTable* table = nullptr;
  TracePlanner* planner = nullptr;
  const WorkingTiers* working = nullptr;
  WriteBack* write_back = nullptr;
  BytePins* pins = nullptr;
  SpillRoom* spill = nullptr;  // of the first memory
  const Transfers* transfers = nullptr;
  const MemoryPassage* passage = nullptr;  // of devices' groups
  Admission* admission = nullptr;
  ReadAhead* read_ahead = nullptr;
};

class ByteAdmission {
 public:
  explicit ByteAdmission(const ByteAdmissionParts& parts) : parts_(parts) {}

  // Answers at once.
  void Open(const OpenBytesRequest& request);
  // A queue of so many bytes, of that client's.
  Customer& Begin(TierResidency& residency, int64_t window_bytes,
                  ClientId client);
  void OnClosed(const Customer& customer);
  void Touch(const TouchRequest& request);
  // A granted pin has ended.
  void OnEnded(uint64_t token, Tensor& tensor, TierId tier);

  // Admits all that can be had now, also where its deadline has come, and ends
  // the other groups whose deadline has: `holders` says who has what they lack.
  void Serve(absl::Time now, const std::function<std::string()>& holders,
             std::vector<QueueError>* errors);
  // Hands over which pins are asked for back.
  void PassRecalls();

  // Tiers where groups lack room, or wait for some that is kept for them.
  const absl::flat_hash_set<TierId>& lacking() const { return lacking_; }
  int64_t groups_beyond() const { return groups_beyond_; }

 private:
  // Groups by number, which is by age.
  using Waiting = std::map<uint64_t, Customer*>;
  struct Lacking {
    Customer* customer = nullptr;
    uint64_t group = 0;
  };
  // Tensors of groups that wait for pins or transfers: to be written?
  using Claimed = absl::flat_hash_map<int64_t, bool>;
  // One look at all groups of a tier.
  struct Round {
    ByteRoom room;
    Lacking oldest;  // of those that find no room
    Lacking oldest_with_pins;
    Lacking passing;  // the oldest that finds none on its way to a device
    Tensor* lowering = nullptr;  // the first that finds none for coming down
    bool answered = false;       // a group was admitted, or has failed

    void Lack(const Lacking& group, bool uses_pins);
    bool lacks() const {
      return oldest.customer != nullptr || passing.customer != nullptr ||
             lowering != nullptr;
    }
  };
  // What a group's tensors have that have no copy at its tier.
  struct Places {
    ByteRoom::Rooms rooms;
    ByteRoom::Rooms passing;
  };

  absl::Status CheckOpen(const OpenBytesRequest& request,
                         const TierResidency& residency) const;
  bool NoteUse(const Customer& customer, int lane, const Tensor& tensor);
  void NoteUses(const Customer& customer, Group& group);
  void Admit(absl::Time now, const std::function<std::string()>& holders,
             std::vector<QueueError>* errors);
  // True: there was one.
  bool ExpireAll(absl::Time now, const std::function<std::string()>& holders);
  void AskBeyond();
  Waiting AllWaiting() const;
  Round MakeRound(TierResidency& residency, const Waiting& waiting) const;
  // The groups of these tiers; the first is a memory, and others are devices.
  void AdmitAt(absl::Span<Round> rounds, const Waiting& waiting, absl::Time now,
               std::vector<QueueError>* errors);
  // True: the group was admitted, or has failed.
  bool TryAdmit(Customer& customer, Group& group, Round& round, Round& memory,
                Claimed* claimed, absl::Time now,
                std::vector<QueueError>* errors);
  // False: it lacks room at its tier, or on the way there.
  bool FindPlaces(Group& group, absl::Span<Tensor* const> tensors,
                  absl::Span<Tensor* const> passing, Round& round,
                  Round& memory, const Lacking& as, Places* places,
                  std::vector<QueueError>* errors);
  bool IsStuck(const Round& round, absl::Span<Tensor* const> tensors) const;
  // After a round that answered nobody. True: what it was about has changed, so
  // that all are to be looked at again.
  bool ServeStuck(Round& round, absl::Time now,
                  const std::function<std::string()>& holders,
                  std::vector<QueueError>* errors);
  // Likewise, of the oldest group of a device that waits for that memory, on
  // its way there, or as others of its device have no room to leave for.
  bool ServeStuckDevice(const Round& memory, absl::Span<const Round> rounds,
                        const std::function<std::string()>& holders);
  // Room for a group's tensors, beside the budget where there is none in it.
  absl::Status FindBeyond(TierResidency& residency,
                          absl::Span<Tensor* const> tensors,
                          ByteRoom::Rooms* rooms) const;

  const ByteAdmissionParts parts_;
  absl::flat_hash_set<TierId> lacking_;
  int64_t groups_beyond_ = 0;
};

}  // namespace terrace
