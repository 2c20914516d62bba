// Where every tensor's bytes are: the state machine that the mover drives and
// the invariants that hold between any two of its steps. Mover only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "terrace/request.h"
#include "terrace/tensor.h"
#include "tiers/extent.h"

namespace terrace {

// The host copy. Only kValid may be pinned; kLoading and kVerifying are held
// for the groups that wait for them.
enum class HostState : uint8_t { kAbsent, kLoading, kVerifying, kValid };

// A transfer out of the host copy.
enum class WriteState : uint8_t { kIdle, kHashing, kWriting };

// Marks a host copy outside all windows.
inline constexpr int kNoWindow = -1;

struct TensorEntry {
  TensorSpec spec;
  TensorId id;

  // The disk copy: path -1 means that the tensor has no home.
  int path = -1;
  Extent home;
  uint64_t home_generation = 0;  // 0: nothing valid there

  // Where the write-back under way goes, or one past its deadline may still
  // write; path -1: none. Another place than the home is a move.
  int target_path = -1;
  Extent target;
  // What refused the present contents: paths, and the last one's error.
  std::vector<int> refused_by;
  absl::Status refusal;

  // Newest contents; 0: never written. Rises when a write pin is published.
  uint64_t generation = 0;

  // The host copy: header and payload at `extent` of the arena.
  HostState host = HostState::kAbsent;
  WriteState write = WriteState::kIdle;
  Extent extent;
  int window = kNoWindow;
  int slot = -1;
  size_t resident_index = 0;  // in the mover's list, outside the windows

  int pins = 0;                    // pins and holds of admitted groups
  std::vector<int64_t> pinned_by;  // the queue of each pin, holds not counted
  bool write_pinned = false;       // by the one pin or hold there is
  bool prefetched = false;         // fetched ahead and not asked for yet
  bool prefetch_failed = false;    // not fetched ahead again until asked for
  bool kept = false;               // by the group for which a place is sought
  bool leaving = false;            // a resident being given up
  bool yielded = false;            // its write-back gave way to a writer once
  bool quarantined = false;  // a timed-out write still reads the host copy
  int verify_failures = 0;   // of the present fetch
  uint64_t io_tag = 0;       // of the transfer in flight
  int64_t queue = -1;        // that asked for it last
  // Without a home yet: nobody knows its id. Or going: only its transfers do.
  bool unregistered = false;

  absl::Status loss;         // sticky DataLoss
  absl::Status write_error;  // of a write-back that waits for another try
  int64_t unsaid_to = -1;    // the queue whose next step begins with that
  std::vector<uint64_t> waiting_groups;  // admitted, until the copy is valid

  bool dirty() const {
    return host == HostState::kValid && !write_pinned &&
           generation != home_generation;
  }
  bool moves() const {
    return target_path >= 0 && (target_path != path || target != home);
  }
  // Nobody uses the host copy and nothing moves it.
  bool idle() const {
    return host == HostState::kValid && pins == 0 && !kept &&
           write == WriteState::kIdle && !quarantined;
  }
};

class ResidencyTable {
 public:
  // AlreadyExists: the name.
  absl::StatusOr<TensorEntry*> Add(const TensorSpec& spec);
  // Undoes an Add whose id nobody knows: the name is free again.
  void TakeBack(const TensorEntry& entry);

  // Ends a tensor's life in two parts: the name is free again; the entry is
  // gone and its id finds nothing.
  void FreeName(const TensorEntry& entry);
  void Erase(TensorEntry& entry);

  // Null: no such tensor. Pointers stay valid until it is erased.
  TensorEntry* Find(TensorId id);
  // By id; null: erased.
  const std::vector<std::unique_ptr<TensorEntry>>& entries() const {
    return entries_;
  }

  // The invariants of ARCHITECTURE.md; the message names the tensor.
  absl::Status CheckInvariants() const;

 private:
  std::vector<std::unique_ptr<TensorEntry>> entries_;  // by id
  std::unordered_map<std::string, TensorId> names_;
};

}  // namespace terrace
