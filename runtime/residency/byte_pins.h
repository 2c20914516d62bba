// The pins that queues of bytes have: which of them are asked for back, and
// which room comes of it.
//
//   granted --Ask--> asked --EndPin--> ended
//                      | Keep                its holder uses it, and ends it
//                      v                     when that is over
//                     kept ---EndPin--> ended
//
// Each pin is asked for back once at most, and each that was asked for ends
// once. The room of a tensor comes once all its pins are asked for and none is
// kept; until then it counts as coming, so that no more is asked for than is
// needed. It counts for who asked for it and for nobody else: whose pin is not
// answered holds up no others. So what has been asked for and may still come is
// never more than what all who ask now lack, each to the next whole tensor.
//
// Pins that a queue holds beyond what it is to hold are asked for as well
// (held_pins.h); these give room to nobody in particular. Mover only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "prefetch/trace_planner.h"
#include "runtime/residency/held_pins.h"
#include "runtime/tensor/tensor_life.h"
#include "tiers/reservation.h"

namespace terrace {

// What a queue of bytes is asked for.
struct RecalledPin {
  int64_t queue = -1;
  uint64_t token = 0;
};

class BytePins {
 public:
  // A queue that answers; from Close on it does not, though its pins stay: they
  // count as kept where they were asked for. The planner outlives them.
  void Open(int64_t queue, const TracePlanner& planner, bool by_next_use) {
    open_.try_emplace(queue, planner, by_next_use);
  }
  void Close(int64_t queue);
  // Of a queue that is open.
  void HoldAtMost(int64_t queue, int64_t bytes);
  // It uses the tensor, which it may have pinned.
  void OnUse(int64_t queue, Tensor& tensor);
  // Who has just been granted others uses that pin too.
  void OnInUse(uint64_t token);

  void OnGranted(uint64_t token, Tensor& tensor, TierId tier, int64_t queue);
  // One that was just granted was asked for before, and perhaps kept: its
  // holder has heard so.
  void RestoreAsked(uint64_t token, bool is_kept);
  // Nothing, for a token of no such pin. True: the tensor has no pin of bytes
  // on that tier any more, or none that was asked for.
  bool OnEnded(uint64_t token);
  // The holder uses it. Null, and nothing changes: it was not asked for, has
  // answered, or has ended. Else the tensor whose room does not come for now.
  const Tensor* Keep(uint64_t token);

  // Whether all that pin its copy there are pins of queues that answer, and
  // none was asked for yet. `pins`: of the copy.
  bool MayAsk(const Tensor& tensor, TierId tier, int32_t pins) const;
  // Whether the user of one of its pins waits.
  bool HasWaiting(const Tensor& tensor) const;
  // One that was just granted: it ends with its use.
  void Ask(uint64_t token);
  // All of its pins there, for its room. `asker`: a number that is nobody
  // else's.
  void AskForRoom(const Tensor& tensor, TierId tier, uint64_t asker);
  // Those on any tier that were not asked for yet, as another's access excludes
  // them.
  void AskForAccess(const Tensor& tensor);
  // Asks for those that queues hold beyond what they are to hold, but for those
  // whose users wait, and returns them.
  std::vector<RecalledPin> AskBeyond();
  // What was asked for otherwise since the last call.
  std::vector<RecalledPin> TakeAsked();

  // The pin's user waits, or waits no more; these nest. Nothing, for a token of
  // no such pin.
  void SetWaiting(uint64_t token, bool waits);
  // Tokens of pins whose users wait, and how many these are.
  const absl::flat_hash_map<uint64_t, int>& waiting() const { return waiting_; }

  // Null: there is no such pin. The tensor that it pins there.
  const Tensor* TensorOf(uint64_t token, TierId tier) const;
  bool IsPinned(const Tensor& tensor, TierId tier) const;
  // Whether it is so of each tensor that has pins of bytes there.
  bool AllPinned(TierId tier, absl::FunctionRef<bool(const Tensor&)> is) const;
  // Room that comes when what was asked for is answered: of a tier, whoever
  // asked for it, and for one asker.
  int64_t coming_bytes(TierId tier) const { return At(tier).coming_bytes; }
  int64_t coming_bytes_for(uint64_t asker) const;
  // Whether that tensor's room is among it.
  bool ComesFor(const Tensor& tensor, TierId tier, uint64_t asker) const;
  // Tensors that have pins of bytes there.
  size_t pinned_tensors(TierId tier) const { return At(tier).pinned; }

  struct Counts {
    int64_t asked = 0;
    int64_t kept = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Pin {
    Tensor* tensor = nullptr;
    TierId tier = kNoTier;
    int64_t queue = -1;
    bool asked = false;
    bool kept = false;
  };
  // Of one tensor; those of all tiers, and few.
  struct Pins {
    absl::InlinedVector<uint64_t, 2> tokens;
    TierId comes = kNoTier;  // its room there counts as coming
    uint64_t asker = 0;      // for that one
  };
  struct Sums {
    int64_t coming_bytes = 0;
    size_t pinned = 0;
  };

  void SetComes(const Tensor& tensor, Pins& pins, TierId tier, uint64_t asker);
  void EndComes(const Tensor& tensor, Pins& pins);
  const Sums& At(TierId tier) const;
  int CountAt(const Pins& pins, TierId tier) const;

  absl::node_hash_map<int64_t, HeldPins> open_;  // by queue
  absl::btree_set<int64_t> changed_;     // queues that may hold too much now
  absl::btree_map<uint64_t, Pin> pins_;  // by token
  absl::flat_hash_map<const Tensor*, Pins> tensors_;
  absl::flat_hash_map<TierId, Sums> sums_;
  absl::flat_hash_map<uint64_t, int64_t> coming_for_;  // by asker
  absl::flat_hash_map<uint64_t, int> waiting_;
  std::vector<RecalledPin> asked_;
  Counts counts_;
};

}  // namespace terrace
