// Random customers of a simulated world, and what they must see: a plain map
// of contents. Every operation is drawn from the seed.
//
// What must hold. A pin's bytes are those of the map, always. A group that
// fails has a typed Status, and one that the history explains: without faults
// only a tensor never written, one discarded, or a deadline that passed. What
// is not pinned can always be had in the end.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/sim/drawn_world.h"
#include "tests/sim/world.h"

namespace terrace {

class RandomOperations {
 public:
  // `transcript`: what the mover does is written there; null: nowhere.
  RandomOperations(uint64_t seed, Trouble trouble,
                   Transcript* transcript = nullptr,
                   Tiers tiers = Tiers::kDisks);

  // `count` operations, in stretches of 400: after each Drain, Audit, and
  // another tensor in the place of each that was lost.
  void Run(int count);

  int64_t pins_checked() const { return pins_checked_; }
  int64_t failed_groups() const { return failed_groups_; }
  int64_t lost_tensors() const;
  // Writes, without other troubles.
  int64_t refused_by_paths() const { return refused_by_paths_; }
  int64_t refused_by_mapped();
  int64_t moved_tensors();  // to other paths, or to a mapped tier
  World& world() { return world_; }

 private:
  struct Truth {
    TensorId id;
    int64_t size_bytes = 0;
    bool written = false;
    bool maybe_lost = false;  // a writer discarded it
    bool lost = false;        // and so it was said
    uint64_t lost_at = 0;     // the next tag, as that was heard
    std::vector<std::byte> bytes;
    int readers = 0;
    int writers = 0;
  };
  struct Held {
    Pin pin;
    int tensor = 0;
    Access access = Access::kRead;
    int customer = 0;  // -1: of an Acquire
  };
  struct Pushed {
    std::vector<int> tensors;
    std::vector<Want> wants;
    Time deadline;
    bool unwritten = false;  // a tensor to fetch was not written yet
  };
  struct Customer {
    std::unique_ptr<RequestQueue> queue;
    int64_t slot_bytes = 0;
    int slots = 0;
    std::map<uint64_t, Pushed> pushed;  // by tag
    bool step_open = false;
    int64_t step = 0;
  };

  uint64_t Draw(uint64_t below) { return random_() % below; }
  void RunStretch(int count);
  void DoOne();
  void Open();
  void CloseOne(int customer);
  void Push(int customer);
  void Take(int customer, absl::Duration patience);
  void Receive(int customer, absl::StatusOr<Ready> ready);
  // `tag`: of its group; of an Acquire the next one.
  void Hold(int customer, int tensor, Access access, uint64_t tag, Pin pin);
  void Explain(const absl::Status& status, const Pushed& pushed);
  void ReleaseAt(size_t index, bool gently);
  void ReleaseAll(int customer);
  void Step(int customer);
  void Acquire();
  void Hint();
  void Replace(int tensor);
  bool IsPushed(int tensor) const;
  void ChangeFaults();
  void RefuseWrites();
  void FailACopy();
  FaultChances DrawChances();
  void ChangePace();
  void Scribble(absl::Span<std::byte> data);
  void Drain();
  void Audit();
  int PickCustomer();

  std::mt19937_64 random_;
  const Trouble trouble_;
  const bool faulty_;  // kAny: customers may hear of it
  bool faults_on_ = false;
  int refusing_tier_ = -1;  // once one did: mapped ones, then paths
  World world_;
  std::vector<Truth> tensors_;
  std::vector<Customer> customers_;
  std::vector<Held> held_;
  uint64_t next_tag_ = 1;
  int64_t replaced_ = 0;  // tensors
  int64_t pins_checked_ = 0;
  int64_t failed_groups_ = 0;
  int64_t refused_by_paths_ = 0;
};

}  // namespace terrace
